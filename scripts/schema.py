"""Writes the schema that all migrations create in SQLite: new homes begin with it, without running the migrations.

`python -m scripts.schema`, after a migration was added.
"""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

from perdure.controller.store.engine.database import MIGRATIONS, head_revision, make_engine, migrate

TARGET = MIGRATIONS / "schema.sql"
# SQLite makes its own tables and the indexes of keys itself.
_QUERY = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY rowid"


def schema() -> str:
    """The statements that create the newest schema, in the order of the migrations."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "new.db")
        engine = make_engine(f"sqlite:///{path}")
        migrate(engine, head_revision())
        engine.dispose()
        with sqlite3.connect(path) as connection:
            statements = [str(sql) for (sql,) in connection.execute(_QUERY)]
        connection.close()
    return "".join(f"{statement};\n" for statement in statements)


if __name__ == "__main__":
    TARGET.write_text(schema())
    print(f"wrote {TARGET}")
