from __future__ import annotations

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DatabaseError

from perdure.controller.runtime.metrics.daemon_metrics import DaemonMetrics
from perdure.controller.store.engine.statement_times import measure
from perdure.controller.store.tables import Meta

Facts = Meta.__table__  # type: ignore[attr-defined]


def test_statements_and_commits__are_measured(database: Engine) -> None:
    metrics = DaemonMetrics()
    measure(database, metrics.database_seconds, metrics.database_errors)
    with database.begin() as conn:
        conn.execute(Facts.insert().values(name="a", value="b"))
        conn.execute(Facts.select())
    with pytest.raises(DatabaseError), database.connect() as conn:
        conn.execute(text("SELECT * FROM nothing"))
    lines = metrics.registry.render().splitlines()
    for what in ("read", "write", "commit"):
        assert f'perdure_database_seconds_count{{what="{what}"}} 1' in lines, what
    assert "perdure_database_errors_total 1" in lines
