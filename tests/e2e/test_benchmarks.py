"""The benchmark of ten thousand jobs still runs jobs: nobody reads its table on most days."""

from __future__ import annotations

import asyncio

import pytest
from benchmarks.scale.daemon import running_daemon
from benchmarks.scale.scenarios import submitted

pytestmark = pytest.mark.slow


async def _run_jobs(count: int) -> int:
    async with running_daemon(database="") as daemon:
        await submitted(daemon, count)
        return len(daemon.world.running_at)


def test_scale__runs_each_job_that_it_submits() -> None:
    assert asyncio.run(_run_jobs(40)) == 40
