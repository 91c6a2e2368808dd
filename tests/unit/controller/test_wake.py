"""What daemons on one PostgreSQL tell each other, as they hear it."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import create_engine

from perdure.controller.store import wake
from perdure.controller.store.wake import Topic


@pytest.mark.parametrize("count", [0, 1, 300, 301, 1000])
def test_whoever_listens_hears_of_each_job_once_the_transaction_is_committed(postgres: object, count: int) -> None:
    url = postgres.new_database()  # type: ignore[attr-defined]
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    jobs = [2**62 + number for number in range(count)]  # as long as ids become
    with psycopg.connect(url, autocommit=True) as listener:
        listener.execute(f"LISTEN {wake.CHANNEL}")
        with engine.connect() as conn:
            wake.notify_all(conn, Topic.JOB, jobs)
            wake.notify(conn, Topic.CLAIM)
            assert list(listener.notifies(timeout=0)) == []
            conn.commit()
        heard = [wake.heard(said.payload) for said in listener.notifies(timeout=10, stop_after=-(-count // 300) + 1)]
    engine.dispose()
    assert heard[-1] == (Topic.CLAIM, [0])
    assert all(said is not None and said[0] is Topic.JOB for said in heard[:-1])
    assert [job for said in heard[:-1] if said is not None for job in said[1]] == jobs


@pytest.mark.parametrize("payload", ["", "job", "job ", "job x", "job 1,", "job 1;2", "weather 1", "job -1"])
def test_what_only_a_newer_daemon_understands_is_passed_over(payload: str) -> None:
    assert wake.heard(payload) is None
