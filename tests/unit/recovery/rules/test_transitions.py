"""The declared transitions between states happen. That `step` makes no others is checked on every random walk."""

from __future__ import annotations

from enum import StrEnum

import pytest

from perdure.recovery.rules.transitions import NODE_PHASES
from perdure.recovery.statuses import AttemptState, NodePhase, Status, TaskState
from support.worlds.step_moves import walk_through
from support.worlds.step_walk import DECLARED

WALKS, LONG_WALKS = 1500, 60_000

# Seen in fewer than one walk of a hundred.
RARE = {
    (Status.PENDING, Status.FAILED_PRECHECKS),
    (Status.PENDING, Status.FAILED),
    (Status.PENDING, Status.CANCELLING),
    (Status.STARTING, Status.FAILED),
    (Status.STARTING, Status.FAILED_SETUP),
    (Status.STARTING, Status.FAILED_PRECHECKS),
    (Status.RUNNING, Status.FAILED_SETUP),
    (Status.RUNNING, Status.FAILED_PRECHECKS),
    (Status.RECOVERING, Status.SUCCEEDED),
    (Status.RECOVERING, Status.FAILED),
    (Status.RECOVERING, Status.FAILED_SETUP),
    (Status.RECOVERING, Status.FAILED_PRECHECKS),
    (TaskState.WAITING, TaskState.STOPPING),
    (AttemptState.REQUESTED, AttemptState.READY),
    (AttemptState.REQUESTED, AttemptState.RUNNING),
    (AttemptState.BOOTING, AttemptState.READY),
    (AttemptState.BOOTING, AttemptState.RUNNING),
    (AttemptState.READY, AttemptState.STOPPED),
    (AttemptState.READY, AttemptState.DRAINING),
}


def missing_transitions(wanted: set[tuple[StrEnum, StrEnum]], walks: int) -> set[tuple[StrEnum, StrEnum]]:
    """Those of `wanted` that no walk makes, of at most so many."""
    missing = set(wanted)
    for seed in range(walks):
        missing -= walk_through(seed).transitions
        if not missing:
            break
    return missing


@pytest.mark.timeout(900)
def test_lifecycle__declares_transitions_that_happen() -> None:
    assert DECLARED > RARE
    assert not missing_transitions(DECLARED - RARE, WALKS)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_lifecycle__declares_no_transition_that_never_happens() -> None:
    """With the rare ones, so that it takes some twenty thousand walks."""
    assert not missing_transitions(DECLARED, LONG_WALKS)


def test_lifecycle__names_every_node_phase_in_order() -> None:
    assert tuple(NodePhase) == NODE_PHASES
