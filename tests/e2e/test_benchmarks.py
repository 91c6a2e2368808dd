"""The benchmarks of ten thousand jobs and of a thousand clusters still run: nobody reads their tables on most days."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from benchmarks.scale.daemon import running_daemon
from benchmarks.scale.scenarios import submitted

from support.helpers.controllers import ROOT
from support.helpers.timing import scaled

pytestmark = pytest.mark.slow


async def _run_jobs(count: int) -> int:
    async with running_daemon(database="") as daemon:
        await submitted(daemon, count)
        return len(daemon.world.running_at)


def test_scale__runs_each_job_that_it_submits() -> None:
    assert asyncio.run(_run_jobs(40)) == 40


def test_services__have_the_availability_of_spothedge_at_no_more_cost() -> None:
    """Simulated on recorded markets."""
    words = [sys.executable, "-m", "benchmarks.services"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=scaled(90), check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_clusters__are_measured_as_if_they_were_up() -> None:
    words = [sys.executable, "-m", "benchmarks.scale.clusters", "--clusters", "30"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=scaled(90), check=False)
    assert "perdure status, CPU" in done.stdout, done.stderr
    assert done.returncode in (0, 1), "figures on a busy computer may miss their targets"
