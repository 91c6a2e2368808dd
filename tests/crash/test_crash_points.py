"""The daemon is killed at each of its crash points in turn, and again; six real jobs notice nothing of it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from keeper import KILL
from perdure.controller.crashpoints import POINTS

# Points on the way from a start to the first request: the daemon is killed in mid-job first, so that there is much to
# take up.
AT_START = ("lease.begun", "lease.claimed", "jobs.adopted", "endpoint.published")
# What needs time to come: jobs wait for it.
IN_TIME = ("lease.renewed", "sweep.listed", "orphan.ending", "orphan.ended")
# What is done once, and perhaps not again after a death there: a notice runs out while no daemon lives.
ONCE = ("upload.kept", "agent.noticed", "sweep.listed", "orphan.ending", "orphan.ended")
# What is done once in a life: after a death there, it is done again.
ONCE_A_LIFE = (
    "upload.keeping",
    "cancel.recorded",
    "preemption.asked",
    "launch.refused",
    "bucket.removing",
    "bucket.removed",
    "bucket.forgotten",
)
IN_SHORT = ("job.accepted", "launch.called:3", "checkpoint.recorded", "agent.ended", "terminate.confirmed")


def plan_for(point: str) -> tuple[str, ...]:
    """Two deaths at the point, where it comes twice: in the second life at its second time."""
    if point in AT_START:
        return (KILL, point, point)
    if point in ONCE:
        return (point,)
    return (point, point if point in ONCE_A_LIFE else f"{point}:2")


@pytest.mark.timeout(400)
def test_several_deaths_in_one_story_harm_no_job(survives: Callable[..., None]) -> None:
    survives(IN_SHORT)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("point", POINTS)
def test_deaths_at_any_point_harm_no_job(survives: Callable[..., None], point: str) -> None:
    """Fails too where the point was not reached: none is dead."""
    survives(plan_for(point), orphan=point.startswith("orphan."), wait_for_deaths=point in IN_TIME)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(6))
def test_random_deaths_harm_no_job(survives: Callable[..., None], seed: int) -> None:
    chance = random.Random(seed)
    points = [point for point in POINTS if point not in (*IN_TIME, *ONCE)]
    plan = [f"{chance.choice(points)}:{chance.randint(1, 4)}" for _ in range(3)]
    survives(plan, every_death=False)
