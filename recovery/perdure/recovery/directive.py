"""What the controller wants of an attempt's nodes: one value per attempt, derived from its state and never stored.

A directive is level-triggered: the controller sends it again on every connection, and a node only moves forward
through the targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from perdure.recovery.job import AttemptView
from perdure.recovery.statuses import AttemptState, NodePhase


class Target(StrEnum):
    WAIT = "wait"
    SETUP = "setup"
    RUN = "run"
    FINISH = "finish"  # `run` has ended on every node: end what it has left in the background
    DRAIN = "drain"
    STOP = "stop"


@dataclass(frozen=True)
class Directive:
    target: Target
    node_ips: tuple[str, ...] = ()  # by rank, once every node has connected
    deadline: float | None = None  # for DRAIN: when it is cut short (epoch seconds)
    reason: str = ""
    # Not sent to nodes. Connections older than this are closed: only a node that reconnects is known to be alive.
    roll_call_at: float | None = None


# Of a node whose `run` may have ended with 0 while its background processes go on.
_RUN_PHASES = (NodePhase.RUNNING, NodePhase.FLUSHING, NodePhase.ENDED)

STOP = Directive(Target.STOP, reason="the controller has given up this attempt")

# A node that has ended starts nothing under it, but can be entered.
KEEP = Directive(Target.DRAIN, reason="the machines are kept after the failure")


def directive_for(attempt: AttemptView) -> Directive:
    """What `attempt`'s nodes shall do now."""
    ips = tuple(node.ip or "" for node in attempt.nodes)
    call_at = attempt.failing_since
    match attempt.state:
        case AttemptState.REQUESTED | AttemptState.BOOTING:
            return Directive(Target.WAIT, roll_call_at=call_at)
        case AttemptState.SETTING_UP | AttemptState.READY:
            return Directive(Target.SETUP, ips, roll_call_at=call_at)
        case AttemptState.RUNNING:
            is_over = all(node.phase in _RUN_PHASES and node.exit_code == 0 for node in attempt.nodes)
            return Directive(Target.FINISH if is_over else Target.RUN, ips, roll_call_at=call_at)
        case AttemptState.DRAINING:
            return Directive(Target.DRAIN, ips, attempt.drain_until, attempt.reason.value if attempt.reason else "")
        case AttemptState.STOPPED if not attempt.terminating:
            return KEEP  # its machines are kept after a failure
        case AttemptState.STOPPED | AttemptState.GONE:
            return STOP
