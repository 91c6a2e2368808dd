"""Whose jobs have changed is read once for all followers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from perdure.controller.api.access import job_owner_cache
from perdure.controller.api.access.job_owner_cache import JobOwnerCache
from perdure.controller.store.engine.database import UNAVAILABLE

OWNERS = {1: "ada", 2: "bob", 3: "ada"}


class Cache(JobOwnerCache):
    """`reads`: the ids that were read, each time. `is_down`: the database is not available."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.reads: list[set[int]] = []
        self.is_down = False

    def _read(self, job_ids: Collection[int]) -> dict[int, str]:
        if self.is_down:
            raise UNAVAILABLE[0]("SELECT", {}, Exception("away"))
        self.reads.append(set(job_ids))
        return {job_id: OWNERS[job_id] for job_id in job_ids if job_id in OWNERS}


async def of_all(cache: JobOwnerCache, *asked: tuple[Any, str]) -> list[set[int]]:
    return await asyncio.gather(*(cache.owned(ids, user) for ids, user in asked))


def test_owners__are_read_once_for_all_followers() -> None:
    async def scenario() -> None:
        cache = Cache()
        assert await of_all(cache, ({1, 2}, "ada"), ({1, 2}, "bob"), ({1}, "eve")) == [{1}, {2}, set()]
        assert await of_all(cache, ({1, 2, 3}, "ada")) == [{1, 3}]
        assert cache.reads == [{1, 2}, {3}]

    asyncio.run(scenario())


def test_owners__of_many_jobs_are_forgotten_and_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_owner_cache, "_MAX_CACHED", 1)

    async def scenario() -> None:
        cache = Cache()
        await cache.owned({1, 2}, "ada")
        assert await cache.owned({1, 3}, "ada") == {1, 3}
        assert cache.reads == [{1, 2}, {1, 3}]

    asyncio.run(scenario())


def test_jobs__are_nobodys_while_the_database_is_away() -> None:
    async def scenario() -> None:
        cache = Cache()
        cache.is_down = True
        assert await cache.owned({1}, "ada") == set()
        cache.is_down = False
        assert await cache.owned({1}, "ada") == {1}

    asyncio.run(scenario())
