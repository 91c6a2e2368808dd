"""How an attempt ends: its wind-down, whether it succeeded or failed, and how long its machines are kept after that."""

from __future__ import annotations

from math import inf

from perdure.recovery.frozen import replace
from perdure.recovery.heartbeat_interval import RECONNECT_S
from perdure.recovery.job import AttemptView, JobView, NodeView, TaskView, Timeouts, View
from perdure.recovery.reasons import STAGE_FAILURES, Reason
from perdure.recovery.statuses import AttemptState, NodePhase

# A draining node gets this much longer than it was granted before its machine is terminated.
DRAIN_MARGIN_S = 3.0

_BEFORE_WORKLOAD = (AttemptState.REQUESTED, AttemptState.BOOTING)
_KEPT_OUTCOMES = frozenset(STAGE_FAILURES.values())
_SET_UP = (NodePhase.READY, NodePhase.RUNNING)


# --- winding down -----------------------------------------------------------------------------------------------------


def wind_down(attempt: AttemptView, *, reason: Reason, until: float) -> AttemptView:
    """`attempt`, draining until `until`; stopped at once if nothing can be running on it."""
    match attempt.state:
        case AttemptState.GONE | AttemptState.STOPPED:
            return attempt
        case AttemptState.DRAINING:
            assert attempt.drain_until is not None
            return replace(attempt, drain_until=min(attempt.drain_until, until))
    if attempt.state in _BEFORE_WORKLOAD or all(n.has_stopped for n in attempt.nodes):
        return replace(attempt, state=AttemptState.STOPPED, reason=reason)
    return replace(attempt, state=AttemptState.DRAINING, drain_until=until, reason=reason)


def immediately(now: float) -> float:
    """The `until` of a wind-down that grants no time."""
    return now - DRAIN_MARGIN_S


def drain_deadline(attempt: AttemptView, timeouts: Timeouts, now: float, *, recovers: bool = True) -> float:
    """When the surviving nodes of a lost attempt must have stopped: at the first notice's deadline, if any.

    An attempt that nothing waits for, since its task does not recover, has the whole time of the notice.
    """
    deadlines = [n.notice_deadline for n in attempt.nodes if n.notice_deadline is not None and n.gone_reason is None]
    default = now + timeouts.drain_timeout_s
    if not deadlines:
        return default
    return min(*deadlines, default) if recovers else min(deadlines)


def drain_overdue_at(attempt: AttemptView, view: View) -> float | None:
    """When `attempt` will have drained for longer than granted; None while it does not drain.

    A controller that has just taken the job over first waits for the nodes to report how the drain ended.
    """
    if attempt.drain_until is None:
        return None
    return max(attempt.drain_until + DRAIN_MARGIN_S, view.owned_since + RECONNECT_S)


# --- how it ended -----------------------------------------------------------------------------------------------------


def has_succeeded(attempt: AttemptView) -> bool:
    """`run` ended by itself with 0 on every rank (or there was none), and its writes are in the bucket."""
    return all(node_has_succeeded(n) for n in attempt.nodes)


def is_set_up(attempt: AttemptView) -> bool:
    """Mounts and `setup` have succeeded on every rank, so that `run` may start.

    A rank that flushes before `run` is not set up: `setup` failed, or it was interrupted. Its last report says which.
    """
    return all(n.phase in _SET_UP for n in attempt.nodes)


def node_has_succeeded(node: NodeView) -> bool:
    """`run` ended by itself with 0 on this rank."""
    return node.phase is NodePhase.ENDED and not node.interrupted and not _has_failed(node)


def failed_node(attempt: AttemptView) -> NodeView | None:
    """The lowest rank that failed by itself, or None."""
    return next((n for n in attempt.nodes if _has_failed(n) and not n.interrupted), None)


def _has_failed(node: NodeView) -> bool:
    return node.phase is NodePhase.ENDED and (node.failed_stage is not None or node.exit_code not in (None, 0))


def kept_until(task: TaskView, attempt: AttemptView, job: JobView) -> float | None:
    """Until when the machines of a failed attempt are kept, so that its user can look at them; None: not at all.

    Counts from the end of the task; infinite before that. A cancel ends it.
    """
    if task.recovery.keep_on_failure_s <= 0 or task.outcome not in _KEPT_OUTCOMES or job.cancel is not None:
        return None
    if attempt.terminating or attempt.state is not AttemptState.STOPPED or failed_node(attempt) is None:
        return None
    if all(n.gone_reason is not None for n in attempt.nodes):
        return None
    return inf if task.ended_at is None else task.ended_at + task.recovery.keep_on_failure_s
