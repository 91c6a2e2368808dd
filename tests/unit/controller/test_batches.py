"""Several jobs alike from one submission, on both databases."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from holdfast.controller.store import jobs

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
