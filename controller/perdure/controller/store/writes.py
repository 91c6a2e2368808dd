"""What a transaction has to write, gathered: rows that are alike go to the database as one statement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Executable


class Writes:
    """Statements without an answer, kept until `flush`. They are not run in the order in which they were put, so none
    may depend on another. What has to be answered goes to `conn` at once."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self._rows: dict[tuple[Executable, tuple[str, ...]], list[Mapping[str, Any]]] = {}

    def put(self, statement: Executable, row: Mapping[str, Any]) -> None:
        """Have `statement` run with the parameters `row`."""
        self._rows.setdefault((statement, tuple(row)), []).append(row)

    def flush(self) -> None:
        """Run all that was put. Raises what the database raises."""
        rows, self._rows = self._rows, {}
        for (statement, _), alike in rows.items():
            self.conn.execute(statement, alike if len(alike) > 1 else alike[0])
