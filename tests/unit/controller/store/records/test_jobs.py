"""Inserting batches of jobs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError

from perdure.controller.store.engine.batch_writer import WriteBatch
from perdure.controller.store.records import jobs
from perdure.recovery import events
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase
from unit.controller.world import World

COLUMNS = {"name": "sweep", "user": "me", "priority": 0, "num_tasks": 1, "submitted_at": 1.0, "owner": None}


def test_insert_batch__ranks_follow_ids_and_the_key_finds_all(world: World) -> None:
    with world.database.begin() as conn:
        ids = jobs.insert_batch(conn, COLUMNS | {"idempotency_key": "k"}, batch_size=300)
        other = jobs.insert_batch(conn, COLUMNS | {"idempotency_key": "k1"})
        assert jobs.find_by_key(conn, "k") == ids == sorted(ids)
        assert jobs.find_by_key(conn, "k1") == other
        assert jobs.find_by_key(conn, "K") == []
        ranks = conn.execute(select(jobs.Job.c.batch_rank, jobs.Job.c.batch_size).order_by(jobs.Job.c.id)).all()
    assert ranks == [*((rank, 300) for rank in range(300)), (0, 1)]


def test_insert_batch__duplicate_key_inserts_nothing(world: World) -> None:
    with world.database.begin() as conn:
        ids = jobs.insert_batch(conn, COLUMNS | {"idempotency_key": "k"}, batch_size=3)
    with pytest.raises(IntegrityError), world.database.begin() as conn:
        jobs.insert_batch(conn, COLUMNS | {"idempotency_key": "k"}, batch_size=5)
    with world.database.connect() as conn:
        assert jobs.find_by_key(conn, "k") == ids
        assert conn.execute(select(jobs.Job.c.id)).scalars().all() == ids


def test_secrets__last_through_restarts_and_recoveries_and_are_deleted_at_the_end(world: World) -> None:
    job, other = world.submit(), world.submit()
    with world.database.begin() as conn:
        conn.execute(update(jobs.Task).values(secrets=b"sealed"))

    def secrets(job_id: int) -> bytes | None:
        with world.database.connect() as conn:
            return conn.execute(select(jobs.Task.c.secrets).where(jobs.Task.c.job_id == job_id)).scalar_one()

    world.run(job)
    world.restart()
    world.cloud.preempt(world.living()[0])
    world.deliver(job, events.MachinesDescribed(0, 1, {0: Reason.PREEMPTED}))
    world.pass_time(30)
    assert world.job(job)["recovery_count"] == 1
    assert secrets(job) == b"sealed"
    generation = world.view(job).tasks[0].attempts[-1].generation
    world.run(job, generation)
    assert secrets(job) == b"sealed"
    world.report(job, NodePhase.ENDED, generation=generation, exit_code=0)
    world.pass_time(120)
    assert world.view(job).is_finalized
    assert secrets(job) is None
    assert secrets(other) == b"sealed"


@pytest.mark.parametrize("size", [40, 20_000])  # in the row's page, and in pages of its own
def test_secrets__leave_no_copy_in_the_file(tmp_path: Path, migrated: Path, size: int) -> None:
    path = tmp_path / "test.db"
    shutil.copyfile(migrated, path)
    world = World(f"sqlite:///{path}")
    sealed = b"S3aled" * size
    job = world.submit()
    with world.database.begin() as conn:
        conn.execute(update(jobs.Task).values(secrets=sealed))
        writes = WriteBatch(conn)
        jobs.finalize(writes, job)
        writes.flush()
    world.database.dispose()  # the last connection empties the write-ahead log
    assert b"S3aled" not in path.read_bytes()
