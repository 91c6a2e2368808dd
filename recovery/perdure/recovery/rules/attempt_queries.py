"""One attempt: how it is wound down, and questions that the rules ask about it."""

from __future__ import annotations

from math import inf

from perdure.recovery.frozen import replace
from perdure.recovery.job import AttemptView, JobView, NodeView, TaskView, Timeouts, View
from perdure.recovery.reasons import STAGE_FAILURES, Reason
from perdure.recovery.statuses import AttemptState, NodePhase

# A draining node gets this much longer than it was granted before its machine is terminated.
DRAIN_MARGIN_S = 3.0

# Every agent that is alive reconnects within this time after a controller has started.
RECONNECT_S = 8.0

_MIN_DESCRIBE_INTERVAL_S = 0.2

_BEFORE_WORKLOAD = (AttemptState.REQUESTED, AttemptState.BOOTING)
_REQUESTED, _BOOTING = AttemptState.REQUESTED, AttemptState.BOOTING
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
    return all(_has_succeeded(n) for n in attempt.nodes)


def is_set_up(attempt: AttemptView) -> bool:
    """Mounts and `setup` have succeeded on every rank, so that `run` may start.

    A rank that flushes before `run` is not set up: `setup` failed, or it was interrupted. Its last report says which.
    """
    return all(n.phase in _SET_UP for n in attempt.nodes)


def _has_succeeded(node: NodeView) -> bool:
    return node.phase is NodePhase.ENDED and not node.interrupted and not _has_failed(node)


def failed_node(attempt: AttemptView) -> NodeView | None:
    """The lowest rank that failed by itself, or None."""
    return next((n for n in attempt.nodes if _has_failed(n) and not n.interrupted), None)


def _has_failed(node: NodeView) -> bool:
    return node.phase is NodePhase.ENDED and (node.failed_stage is not None or node.exit_code not in (None, 0))


def loss_reason(attempt: AttemptView, view: View, now: float) -> Reason | None:
    """Why `attempt` cannot go on because of its machines; None while it can."""
    boot_by = boot_timeout_at(attempt, view)
    is_overdue = boot_by is not None and boot_by <= now
    if attempt.running_at is None and any(_has_succeeded(n) for n in attempt.nodes):
        return Reason.MACHINE_CRASHED  # it ended before it was permitted to run, and names no failure
    if attempt.healthy:
        return Reason.BOOT_TIMEOUT if is_overdue else None
    for node in attempt.nodes:
        if node.gone_reason is not None and node.phase is not NodePhase.ENDED:
            return node.gone_reason
    gone_after_end = next((n.gone_reason for n in attempt.nodes if n.gone_reason is not None), None)
    if gone_after_end is not None and not has_succeeded(attempt) and failed_node(attempt) is None:
        return gone_after_end
    if any(n.notice_deadline is not None for n in attempt.nodes):
        return Reason.PREEMPTION_NOTICE
    if any(n.interrupted and n.phase is NodePhase.ENDED for n in attempt.nodes):
        return Reason.PREEMPTION_NOTICE
    if any(n.mount_lost for n in attempt.nodes):
        return Reason.MOUNT_LOST
    if any(at <= now for at in unreachable_at(attempt, view)):
        return Reason.UNREACHABLE
    return Reason.BOOT_TIMEOUT if is_overdue else None


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


# --- when to look again -----------------------------------------------------------------------------------------------


def boot_timeout_at(attempt: AttemptView, view: View) -> float | None:
    """By when every agent must have connected; None once all have."""
    if attempt.state is not _BOOTING or attempt.booted_at is None:
        return None
    return view.wait_starts_at(attempt.booted_at) + view.timeouts.boot_timeout_s


def unreachable_at(attempt: AttemptView, view: View) -> list[float]:
    """For each disconnected node: when it will have been disconnected for too long."""
    return [view.wait_starts_at(since) + view.timeouts.node_timeout_s for since in _disconnections(attempt)]


def is_disconnected(node: NodeView) -> bool:
    """Has connected before, is not connected now, and is not known to have stopped."""
    return node.disconnected_since is not None and not node.has_stopped


def describe_due_at(attempt: AttemptView, timeouts: Timeouts) -> float | None:
    """When the cloud is to be asked about the machines: at once after a disconnection, then less and less often.

    None: not at all. A cloud may list a dead machine for a while, so one query is not enough.
    """
    if attempt.terminating or attempt.state is _REQUESTED:
        return None
    if attempt.healthy and attempt.failing_since is None:
        return None
    doubts = _disconnections(attempt)
    if attempt.failing_since is not None and attempt.is_wanted:
        doubts.append(attempt.failing_since)
    requested_at = attempt.describe_requested_at
    if requested_at is None:
        return min(doubts, default=None)
    return min((requested_at + _describe_interval_s(requested_at - since, timeouts) for since in doubts), default=None)


def describe_is_due(attempt: AttemptView, timeouts: Timeouts, now: float) -> bool:
    due_at = describe_due_at(attempt, timeouts)
    return due_at is not None and now >= due_at


def _disconnections(attempt: AttemptView) -> list[float]:
    return [n.disconnected_since for n in attempt.nodes if is_disconnected(n) and n.disconnected_since is not None]


def _describe_interval_s(elapsed_s: float, timeouts: Timeouts) -> float:
    return min(timeouts.describe_interval_s, max(_MIN_DESCRIBE_INTERVAL_S, elapsed_s))
