"""Inserting batches of jobs."""

from __future__ import annotations

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from perdure.controller.store.records import jobs
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
