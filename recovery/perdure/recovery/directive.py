"""What the controller wants of an attempt's nodes: one value per attempt, derived, never stored.

A directive is a level, not a message: it is sent again on every connection, and a node only moves forward through it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from perdure.recovery.job import AttemptView
from perdure.recovery.statuses import AttemptState


class Want(StrEnum):
    WAIT = "wait"
    SETUP = "setup"
    RUN = "run"
    DRAIN = "drain"
    STOP = "stop"


@dataclass(frozen=True)
class Directive:
    """`node_ips` by rank, once every node has called. `deadline` in epoch seconds, for DRAIN.

    `roll_call_at` is no node's concern: connections made before that roll call have to be made anew, because only who
    calls again is known to live.
    """

    want: Want
    node_ips: tuple[str, ...] = ()
    deadline: float | None = None
    reason: str = ""
    roll_call_at: float | None = None


STOP = Directive(Want.STOP, reason="the controller has written this attempt off")


def directive(attempt: AttemptView) -> Directive:
    """What `attempt`'s nodes shall do now."""
    ips = tuple(node.ip or "" for node in attempt.nodes)
    call_at = attempt.failing_since
    match attempt.state:
        case AttemptState.REQUESTED | AttemptState.BOOTING:
            return Directive(Want.WAIT, roll_call_at=call_at)
        case AttemptState.SETTING_UP | AttemptState.READY:
            return Directive(Want.SETUP, ips, roll_call_at=call_at)
        case AttemptState.RUNNING:
            return Directive(Want.RUN, ips, roll_call_at=call_at)
        case AttemptState.DRAINING:
            return Directive(Want.DRAIN, ips, attempt.drain_until, attempt.reason.value if attempt.reason else "")
        case AttemptState.STOPPED | AttemptState.GONE:
            return STOP
