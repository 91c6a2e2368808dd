"""Chooses the log store of a controller."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine

from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.controller.store.logs.protocol import LogStore
from perdure.controller.store.logs.sql_logs import SqlLogStore


def open_logs(home: Path, database: Engine, owner: str, *, shared: bool) -> LogStore:
    """The log store of this controller. `shared`: in the database, for several controllers; else in `home`."""
    return SqlLogStore(database, owner) if shared else FileLogStore(home)
