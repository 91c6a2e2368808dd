"""Which job a replica has, when two controllers believe that the service is theirs."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from perdure.controller.store.records import jobs
from perdure.controller.store.services import records
from perdure.controller.store.services.records import DOWN

JOB = {"name": "model-1", "user": "u", "priority": 0, "num_tasks": 1, "submitted_at": 1.0, "owner": None}


@pytest.fixture
def service_id(database: Engine) -> int:
    """A service that is down, and whose only replica is retired and has no job yet."""
    columns = {"name": "model", "active_name": None, "user": "u", "wanted": DOWN, "created_at": 0.0, "version": 1}
    columns |= {"mode": "rolling", "next_replica": 1, "target": 1, "owner": "b"}
    with database.begin() as conn:
        id_ = records.insert_service(conn, columns)
        assert records.insert_replica(conn, id_, 1, is_spot=False, now=1.0) == 1
        records.change_replica(conn, id_, 1, retired_at=2.0, retired_as="TERMINATED")
    return id_


def submit(database: Engine, service_id: int) -> int:
    with database.begin() as conn:
        return jobs.insert_batch(conn, JOB | {"idempotency_key": records.launch_key(service_id, 1)})[0]


def record_launch(database: Engine, service_id: int, job_id: int) -> bool:
    with database.begin() as conn:
        return records.record_launch(conn, service_id, 1, job_id)


def end_unlaunched(database: Engine, service_id: int) -> None:
    with database.begin() as conn:
        records.end_unlaunched(conn, service_id, 1, 3.0)


def to_end(database: Engine) -> list[int | None]:
    """The jobs of the replicas that somebody looks after."""
    with database.connect() as conn:
        ids = [row.id for row in records.unsettled(conn)]
        return [one.row.job_id for of_one in records.replicas(conn, ids).values() for one in of_one]


def test_replica__without_a_job_is_over_at_once(database: Engine, service_id: int) -> None:
    assert to_end(database) == [None]
    end_unlaunched(database, service_id)
    assert to_end(database) == []
    with database.connect() as conn:
        (ended,) = records.replicas(conn, [service_id], ended=True)[service_id]
    assert (ended.row.ended_at, ended.row.final_status) == (3.0, "TERMINATED")


@pytest.mark.parametrize("submitted", ["before the end", "after the end"])
def test_replica__that_was_ended_while_its_job_was_submitted_is_opened_again(
    database: Engine, service_id: int, submitted: str
) -> None:
    if submitted == "after the end":
        end_unlaunched(database, service_id)
    job_id = submit(database, service_id)
    assert record_launch(database, service_id, job_id)
    if submitted == "before the end":  # by a controller that has read the replica before
        end_unlaunched(database, service_id)
    assert to_end(database) == [job_id]


def test_replica__whose_launch_was_not_written_down_gets_its_job(database: Engine, service_id: int) -> None:
    job_id = submit(database, service_id)  # the controller was killed then
    end_unlaunched(database, service_id)
    assert to_end(database) == [job_id]


def test_replica__that_is_over_stays_so_when_its_launch_is_recorded_again(database: Engine, service_id: int) -> None:
    job_id = submit(database, service_id)
    record_launch(database, service_id, job_id)
    with database.begin() as conn:
        records.change_replica(conn, service_id, 1, ended_at=4.0, final_status="TERMINATED")
    assert record_launch(database, service_id, job_id)
    assert to_end(database) == []


def test_launch__of_a_replica_that_is_forgotten_is_not_recorded(database: Engine, service_id: int) -> None:
    end_unlaunched(database, service_id)
    with database.begin() as conn:
        records.forget_ended(conn, service_id, 0)
    assert not record_launch(database, service_id, submit(database, service_id))
