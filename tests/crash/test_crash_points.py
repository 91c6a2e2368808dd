"""The daemon is killed at each failpoint, twice, while six real jobs run. None of them is harmed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from perdure.controller.runtime.failpoints import FAILPOINTS
from support.helpers.service_manager import KILL

pytestmark = pytest.mark.long

# Failpoints between a start and the first request. The daemon is killed once before, so that there are jobs to adopt.
AT_START = ("lease.begun", "lease.claimed", "jobs.adopted", "endpoint.published")
# Failpoints that are reached after a while: the jobs wait for them.
IN_TIME = (
    "lease.renewed",
    "watermark.advanced",
    "sweep.listed",
    "orphan.terminating",
    "orphan.terminated",
    "local_machines.ended",
)
# Failpoints that may not be reached again after a death there: a notice may expire while no daemon runs.
ONCE = ("upload.stored", "agent.notice_received", *IN_TIME[2:])
# Failpoints that are reached once in a life of the daemon: after a death there, they are reached again.
ONCE_A_LIFE = (
    "upload.storing",
    "cancel.recorded",
    "preemption.requested",
    "launch.rejected",
    "bucket.removing",
    "bucket.removed",
    "bucket.record_removed",
)
IN_SHORT = ("job.accepted", "launch.called:3", "checkpoint.recorded", "agent.ended", "terminate.confirmed")


def plan_for(point: str) -> tuple[str, ...]:
    """Two deaths at the failpoint, if it is reached twice. The second life ends when it is reached again."""
    if point in AT_START:
        return (KILL, point, point)
    if point in ONCE:
        return (point,)
    return (point, point if point in ONCE_A_LIFE else f"{point}:2")


@pytest.mark.timeout(400)
def test_jobs__survive_several_deaths(survives: Callable[..., None]) -> None:
    survives(IN_SHORT)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("point", FAILPOINTS)
def test_jobs__survive_deaths_at_any_failpoint(survives: Callable[..., None], point: str) -> None:
    """Fails also if the failpoint is not reached, since no daemon dies then."""
    survives(plan_for(point), orphan=point.startswith("orphan."), wait_for_deaths=point in IN_TIME)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(6))
def test_jobs__survive_random_deaths(survives: Callable[..., None], seed: int) -> None:
    rng = random.Random(seed)
    points = [point for point in FAILPOINTS if point not in (*IN_TIME, *ONCE)]
    plan = [f"{rng.choice(points)}:{rng.randint(1, 4)}" for _ in range(3)]
    survives(plan, every_death=False)
