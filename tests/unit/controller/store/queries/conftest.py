"""Fixtures of the tests of queries."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from perdure.controller.store.engine.database import open_database
from perdure.controller.store.queries.counts import MARGIN_S
from support.helpers.past_jobs import KINDS, NOW, PastJobs


@pytest.fixture
def past_jobs(database_url: str) -> Iterator[PastJobs]:
    drawn = random.Random(7)
    jobs_of_past = PastJobs(open_database(database_url), {})
    if jobs_of_past.engine.dialect.name == "postgresql":
        _forget_earlier_rows(jobs_of_past.engine)
    for _ in range(60):
        kinds = drawn.choices(KINDS, weights=(1, 1, 1, 1, 1, 8, 4, 4, 2), k=drawn.choice((1, 1, 1, 2, 3)))
        jobs_of_past.add(drawn.choice(("bert", "gpt", "rare")), kinds, NOW - drawn.uniform(0, 3 * MARGIN_S))
    yield jobs_of_past
    jobs_of_past.engine.dispose()


def _forget_earlier_rows(engine: Engine) -> None:
    """Let no row that other tests have deleted, and no count that autovacuum makes, change the plans of queries."""
    tables = ("job", "task", "attempt", "node")
    with engine.begin() as conn:
        conn.execute(text(f"TRUNCATE {', '.join(tables)} CASCADE"))
        for table in tables:
            conn.execute(text(f"ALTER TABLE {table} SET (autovacuum_enabled = false)"))
        counted = " OR ".join(f"starelid = '{table}'::regclass" for table in tables)
        conn.execute(text(f"DELETE FROM pg_statistic WHERE {counted}"))
