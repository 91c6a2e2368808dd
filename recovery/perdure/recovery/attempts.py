"""One attempt's way to its end: what a task does with an attempt that it loses, drains or no longer wants."""

from __future__ import annotations

from perdure.recovery.job import AttemptView, Limits, NodeView, View
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import AttemptState, NodePhase
from perdure.recovery.values import replace

# A node that drains gets this much longer than it was promised before its machine is ended.
DRAIN_MARGIN_S = 3.0

# Every agent that can calls again within this long after a controller is back.
CALL_BACK_S = 8.0

_FIRST_RECHECK_S = 0.2

_BEFORE_WORKLOAD = (AttemptState.REQUESTED, AttemptState.BOOTING)
_REQUESTED, _BOOTING = AttemptState.REQUESTED, AttemptState.BOOTING


def wind_down(attempt: AttemptView, *, reason: Reason, until: float) -> AttemptView:
    """`attempt`, told to stop by `until`; an attempt on which nothing can be running stops at once."""
    match attempt.state:
        case AttemptState.GONE | AttemptState.STOPPED:
            return attempt
        case AttemptState.DRAINING:
            assert attempt.drain_until is not None
            return replace(attempt, drain_until=min(attempt.drain_until, until))
    if attempt.state in _BEFORE_WORKLOAD or all(n.has_stopped for n in attempt.nodes):
        return replace(attempt, state=AttemptState.STOPPED, reason=reason)
    return replace(attempt, state=AttemptState.DRAINING, drain_until=until, reason=reason)


def abruptly(now: float) -> float:
    """The `until` of a wind-down that grants no grace."""
    return now - DRAIN_MARGIN_S


def overdue_at(attempt: AttemptView, view: View) -> float | None:
    """From when on `attempt` has drained for longer than it was granted; None while it does not drain.

    A controller that was away hears first how the drain ended.
    """
    if attempt.drain_until is None:
        return None
    return max(attempt.drain_until + DRAIN_MARGIN_S, view.taken_up_at + CALL_BACK_S)


def has_succeeded(attempt: AttemptView) -> bool:
    """Every rank's `run` ended by itself with 0 (or there was none), and its writes are kept."""
    return all(n.phase is NodePhase.ENDED and not n.interrupted and not _has_failed(n) for n in attempt.nodes)


def failed_node(attempt: AttemptView) -> NodeView | None:
    """The lowest rank that failed by itself, or None."""
    return next((n for n in attempt.nodes if _has_failed(n) and not n.interrupted), None)


def _has_failed(node: NodeView) -> bool:
    ended_badly = node.phase is NodePhase.ENDED and node.exit_code not in (None, 0)
    return node.failed_stage is not None or ended_badly


def loss(attempt: AttemptView, view: View, now: float) -> Reason | None:
    """Why `attempt` can not go on, as far as its machines are concerned; None while it can."""
    boot_by = boot_timeout_at(attempt, view)
    is_overdue = boot_by is not None and boot_by <= now
    if attempt.is_well:
        return Reason.BOOT_TIMEOUT if is_overdue else None
    for node in attempt.nodes:
        if node.gone is not None and node.phase is not NodePhase.ENDED:
            return node.gone
    gone_after_end = next((n.gone for n in attempt.nodes if n.gone is not None), None)
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


def unreachable_at(attempt: AttemptView, view: View) -> list[float]:
    """For each silent node: when its silence has lasted for too long."""
    silent = [n.silent_since for n in attempt.nodes if is_silent(n) and n.silent_since is not None]
    return [view.patience_from(since) + view.limits.silent_s for since in silent]


def boot_timeout_at(attempt: AttemptView, view: View) -> float | None:
    """By when every agent must have called; None once they have."""
    if attempt.state is not _BOOTING or attempt.booted_at is None:
        return None
    return view.patience_from(attempt.booted_at) + view.limits.boot_timeout_s


def is_silent(node: NodeView) -> bool:
    """Has called before, is not connected now, and is not known to have stopped."""
    return node.silent_since is not None and not node.has_stopped


def recheck_at(attempt: AttemptView, limits: Limits) -> float | None:
    """When machines are due to be looked up: as soon as a silence begins, then less and less often. None: never.

    A cloud may need a moment to learn of a death that a broken connection tells at once.
    """
    if attempt.terminating or attempt.state is _REQUESTED:
        return None
    if attempt.is_well and attempt.failing_since is None:
        return None
    begun = [n.silent_since for n in attempt.nodes if is_silent(n) and n.silent_since is not None]
    if attempt.failing_since is not None and attempt.is_wanted:
        begun.append(attempt.failing_since)
    asked = attempt.check_asked_at
    if asked is None:
        return min(begun, default=None)
    return min((asked + _pause(asked - since, limits) for since in begun), default=None)


def _pause(elapsed_s: float, limits: Limits) -> float:
    return min(limits.recheck_s, max(_FIRST_RECHECK_S, elapsed_s))


def drain_deadline(attempt: AttemptView, limits: Limits, now: float) -> float:
    """When a lost attempt's survivors must have stopped: the first notice's deadline, else the default grace."""
    deadlines = [n.notice_deadline for n in attempt.nodes if n.notice_deadline is not None and n.gone is None]
    return min([*deadlines, now + limits.drain_s]) if deadlines else now + limits.drain_s
