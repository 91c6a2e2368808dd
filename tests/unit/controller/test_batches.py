"""Several jobs alike from one submission, on both databases."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from perdure.controller import mail
from perdure.controller.store import jobs
from perdure.recovery import events

COLUMNS = {"name": "sweep", "user": "me", "priority": 0, "num_tasks": 1, "submitted_at": 1.0, "owner": None}


def test_a_batch_has_ranks_in_the_order_of_its_ids_and_is_found_by_its_key(world: Any) -> None:
    with world.database.begin() as conn:
        ids = jobs.reserve(conn, COLUMNS | {"key": "k"}, batch_size=300)
        other = jobs.reserve(conn, COLUMNS | {"key": "k1"})
        assert jobs.find_by_key(conn, "k") == ids == sorted(ids)
        assert jobs.find_by_key(conn, "k1") == other
        assert jobs.find_by_key(conn, "K") == []
        ranks = conn.execute(select(jobs.Job.c.batch_rank, jobs.Job.c.batch_size).order_by(jobs.Job.c.id)).all()
    assert ranks == [*((rank, 300) for rank in range(300)), (0, 1)]


def test_of_two_batches_with_one_key_the_second_leaves_nothing(world: Any) -> None:
    with world.database.begin() as conn:
        ids = jobs.reserve(conn, COLUMNS | {"key": "k"}, batch_size=3)
    with pytest.raises(IntegrityError), world.database.begin() as conn:
        jobs.reserve(conn, COLUMNS | {"key": "k"}, batch_size=5)
    with world.database.connect() as conn:
        assert jobs.find_by_key(conn, "k") == ids
        assert conn.execute(select(jobs.Job.c.id)).scalars().all() == ids


def test_what_is_said_of_many_jobs_is_safe_before_it_is_recorded(world: Any) -> None:
    """Safe: whoever owns the jobs by then reads it, once, and of those that have ended nobody does."""
    ids = [world.submit() for _ in range(4)]
    world.settle()
    world.tell(ids[0], events.CancelRequested(0))
    world.pass_time(10)
    assert world.view(ids[0]).is_settled
    with world.database.begin() as conn:
        mail.leave(conn, ids, events.CancelRequested(0), world.clock.now())
    world.restart("two")
    incoming = mail.Incoming(world.database, "two", world.reconciler.post)
    assert incoming.look() == 3
    assert incoming.look() == 0, "they are being read"
    world.pass_time(10)
    assert all(world.view(id).is_settled for id in ids)
    assert [world.kinds(id).count("job.cancel") for id in ids] == [1] * 4
    assert mail.Incoming(world.database, "two", world.reconciler.post).look() == 0
