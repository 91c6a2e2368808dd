"""Notifications between daemons on one PostgreSQL."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import create_engine

from perdure.controller.store.engine import pg_notify
from perdure.controller.store.engine.pg_notify import Topic
from support.helpers.timing import scaled


@pytest.mark.parametrize("count", [0, 1, 300, 301, 1000])
def test_notify_all__delivers_each_job_once_after_the_commit(postgres: object, count: int) -> None:
    url = postgres.new_database()  # type: ignore[attr-defined]
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    jobs = [2**62 + number for number in range(count)]  # ids of the maximum length
    with psycopg.connect(url, autocommit=True) as listener:
        listener.execute(f"LISTEN {pg_notify.CHANNEL}")
        with engine.connect() as conn:
            pg_notify.notify_all(conn, Topic.JOB, jobs)
            pg_notify.notify(conn, Topic.CLAIM)
            assert list(listener.notifies(timeout=0)) == []
            conn.commit()
        received = [
            pg_notify.parse_payload(notification.payload)
            for notification in listener.notifies(timeout=scaled(10), stop_after=-(-count // 300) + 1)
        ]
    engine.dispose()
    assert received[-1] == (Topic.CLAIM, [0])
    assert all(parsed is not None and parsed[0] is Topic.JOB for parsed in received[:-1])
    assert [job for parsed in received[:-1] if parsed is not None for job in parsed[1]] == jobs


@pytest.mark.parametrize("payload", ["", "job", "job ", "job x", "job 1,", "job 1;2", "weather 1", "job -1"])
def test_parse_payload__ignores_payloads_of_newer_daemons(payload: str) -> None:
    assert pg_notify.parse_payload(payload) is None
