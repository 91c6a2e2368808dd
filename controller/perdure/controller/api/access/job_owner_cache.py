"""Which of the jobs that have changed are a user's, for streams of hints."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from sqlalchemy import Engine

from perdure.controller.store.access import owners
from perdure.controller.store.engine.database import UNAVAILABLE

_MAX_CACHED = 10_000


class JobOwnerCache:
    """Remembers whose jobs are, since that never changes. For all followers, on the event loop."""

    def __init__(self, database: Engine) -> None:
        self._database = database
        self._owners: dict[int, str] = {}
        self._reading = asyncio.Lock()

    async def owned(self, job_ids: Collection[int], user: str) -> set[int]:
        """Those of the jobs that are the user's; none while the database is unavailable."""
        if not self._owners.keys() >= set(job_ids):
            async with self._reading:  # of several followers, one reads
                unknown = [job_id for job_id in job_ids if job_id not in self._owners]
                if len(self._owners) > _MAX_CACHED:
                    self._owners.clear()
                    unknown = list(job_ids)
                try:
                    self._owners.update(await asyncio.to_thread(self._read, unknown) if unknown else {})
                except UNAVAILABLE:
                    return set()
        return {job_id for job_id in job_ids if self._owners.get(job_id) == user}

    def _read(self, job_ids: Collection[int]) -> dict[int, str]:
        with self._database.connect() as conn:
            return owners.job_owners(conn, job_ids)
