"""What is not needed any more is given back to the machine. Each in an interpreter of its own."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.controller.store.database import CannotOpen, head, open_database

MIGRATED = """
import sys
from perdure.controller.store.database import migrate_aside
migrate_aside(sys.argv[1])
print("alembic" in sys.modules)
"""


def test_migrating_leaves_nothing_in_the_process_that_has_it_done(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    assert output(MIGRATED, f"sqlite:///{path}") == "False\n"
    assert sqlite3.connect(path).execute("SELECT version_num FROM alembic_version").fetchall() == [(head(),)]


def test_whoever_opens_a_database_that_could_not_be_migrated_is_told(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    path.write_bytes(b"not a database" * 100)
    assert output(MIGRATED, f"sqlite:///{path}") == "False\n"
    with pytest.raises(CannotOpen):
        open_database(f"sqlite:///{path}")


def output(program: str, *words: str) -> str:
    """Of an interpreter that runs it; what it says of errors is to be nothing."""
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout
