"""Claiming from the outbox when a receiver is down and thousands of rows wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, update

from perdure.controller.store.engine.database import open_database
from perdure.controller.store.records import notifications
from perdure.controller.store.records.notifications import Notifications

NOW = 100.0
FEW = 500


def queue(conn: Connection, event_ids: Iterable[str], job: Callable[[int], int | None]) -> None:
    rows = [
        {"event_id": event_id, "channel": "ops", "kind": "job.failed", "job_id": job(n), "at": 1.0, "body": {}}
        for n, event_id in enumerate(event_ids)
    ]
    notifications.add_all(conn, rows)


def claim(conn: Connection, *, one_per_job: bool, limit: int = 1000) -> list[str]:
    claimed = notifications.claim(conn, "ops", "me", now=NOW, lease_s=10.0, limit=limit, one_per_job=one_per_job)
    return [one.event_id for one in claimed]


@pytest.mark.parametrize("one_per_job", [True, False])
@pytest.mark.parametrize("all_wait", [True, False])
def test_claim__reads_each_pending_row_a_few_times(tmp_path: Path, one_per_job: bool, all_wait: bool) -> None:
    database = open_database(f"sqlite:///{tmp_path}/outbox.db")

    def steps(number: int) -> int:
        """Thousands of instructions of SQLite's machine that a claim among `number` rows takes."""
        taken = [0]

        def count() -> None:
            taken[0] += 1

        with database.connect() as conn, conn.begin() as transaction:
            queue(conn, (f"e{n}" for n in range(number)), lambda n: n % (number // 5))
            if all_wait:
                conn.execute(update(Notifications).where(Notifications.c.id <= number // 5).values(wake_at=NOW + 1))
            raw = conn.connection.driver_connection
            assert raw is not None
            raw.set_progress_handler(count, 1000)
            try:
                assert bool(claim(conn, one_per_job=one_per_job)) is not all_wait
            finally:
                raw.set_progress_handler(None, 0)
            transaction.rollback()
        return taken[0]

    few, many = steps(FEW), steps(4 * FEW)
    database.dispose()
    assert many < 6 * few, "it grows with the rows, not with their square"


def test_due_channels__count_no_row_behind_one_that_waits(database: Engine) -> None:
    with database.begin() as conn:
        queue(conn, ["a1", "a2", "a3"], lambda _: 1)
        queue(conn, ["b1", "b2"], lambda _: 2)
        queue(conn, ["none"], lambda _: None)
        (due,) = notifications.due_channels(conn, NOW)
        assert due.number == 6
        conn.execute(update(Notifications).where(Notifications.c.event_id == "a1").values(wake_at=NOW + 1))
        conn.execute(update(Notifications).where(Notifications.c.event_id == "b2").values(leased_until=NOW + 1))
        (due,) = notifications.due_channels(conn, NOW)
        assert due.number == 2, "b1, and the one of no job"
        assert claim(conn, one_per_job=False) == ["b1", "none"]
        assert notifications.due_channels(conn, NOW) == []
