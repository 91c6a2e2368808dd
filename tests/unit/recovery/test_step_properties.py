"""Invariants of `step`: after a random walk of events, a cooperative world answers every action, and every job ends.

The invariants of each single event are those of `support.worlds.step_walk`.
"""

from __future__ import annotations

import pytest

from perdure.recovery import events
from support.worlds.step_moves import end_job, walk_through
from support.worlds.step_walk import Walk

WALKS = 600
LONG_WALKS, LONG_PARTS = 24_000, 6


@pytest.mark.timeout(900)  # a failure is shortened before it is reported
def test_step__keeps_invariants_and_ends_every_job() -> None:
    for seed in range(WALKS):
        walk_through(seed, check_end)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(WALKS, WALKS + LONG_WALKS, LONG_WALKS // LONG_PARTS))
def test_step__keeps_invariants_on_many_walks(first: int) -> None:
    for seed in range(first, first + LONG_WALKS // LONG_PARTS):
        walk_through(seed, check_end)


def check_end(walk: Walk) -> None:
    end_job(walk)
    assert all(t.status.is_terminal for t in walk.job.tasks)
    refused = [e for e in walk.sent if isinstance(e, events.LaunchRefused | events.LaunchCancelled)]
    machines = set(walk.launched) - {(e.task, e.generation) for e in refused}
    gone = {(e.task, e.generation) for e in walk.sent if isinstance(e, events.AttemptGone)}
    assert machines <= gone, "a machine was launched and never confirmed gone"
