"""Collects the writes of a transaction, so that rows of the same kind go to the database in one statement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Executable


class WriteBatch:
    """Statements without results, kept until `flush`.

    They do not run in the order in which they were added, so none may depend on another. A statement whose result is
    needed is executed on `conn` at once.
    """

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self._rows: dict[tuple[Executable, tuple[str, ...]], list[Mapping[str, Any]]] = {}

    def add(self, statement: Executable, row: Mapping[str, Any]) -> None:
        """Run `statement` with the parameters `row` at the next `flush`."""
        self._rows.setdefault((statement, tuple(row)), []).append(row)

    def flush(self) -> None:
        """Run all statements that were added. Raises what the database raises."""
        rows, self._rows = self._rows, {}
        for (statement, _), batch in rows.items():
            self.conn.execute(statement, batch if len(batch) > 1 else batch[0])
