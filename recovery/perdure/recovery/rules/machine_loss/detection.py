"""When an attempt's machines count as lost: gone, announced to go, silent for too long, or never connected.

A node that is silent has not ended yet: first the cloud is asked about its machine, and `unreachable_at` is the limit.
"""

from __future__ import annotations

from perdure.recovery.job import AttemptView, NodeView, Timeouts, View
from perdure.recovery.reasons import Reason
from perdure.recovery.rules.attempt_end import failed_node, has_succeeded, node_has_succeeded
from perdure.recovery.statuses import AttemptState, NodePhase

_MIN_DESCRIBE_INTERVAL_S = 0.2


def loss_reason(attempt: AttemptView, view: View, now: float) -> Reason | None:
    """Why `attempt` cannot go on because of its machines; None while it can."""
    boot_by = boot_timeout_at(attempt, view)
    is_overdue = boot_by is not None and boot_by <= now
    if attempt.running_at is None and any(node_has_succeeded(n) for n in attempt.nodes):
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


def boot_timeout_at(attempt: AttemptView, view: View) -> float | None:
    """By when every agent must have connected; None once all have."""
    if attempt.state is not AttemptState.BOOTING or attempt.booted_at is None:
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
    if attempt.terminating or attempt.state is AttemptState.REQUESTED:
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
