"""Rules for a rank that fails by itself: the task restarts if the user allows it, or fails."""

from __future__ import annotations

from perdure.recovery.actions import DescribeMachines, TimelineEntry
from perdure.recovery.frozen import replace
from perdure.recovery.job import AttemptView, NodeView, TaskView
from perdure.recovery.reasons import Reason
from perdure.recovery.rules.attempt_end import failed_node
from perdure.recovery.rules.context import (
    Context,
    conclude,
    count_recovery,
    describe_failure,
    failure_reason,
    give_up_attempt,
)
from perdure.recovery.rules.machine_loss.detection import describe_is_due, is_disconnected
from perdure.recovery.statuses import NodePhase


def handle_failure(task: TaskView, ctx: Context) -> TaskView | None:
    """A rank failed by itself: restart the task if the user allows it, else fail it.

    A rank often fails because another machine was preempted, which is not the user's error. So unless every rank has
    ended, the others must reconnect first, and the cloud must describe their machines.
    """
    attempt = task.current
    node = failed_node(attempt) if attempt else None
    if attempt is None or node is None or task.outcome is not None:
        return None
    if not _peers_are_alive(attempt):
        return _check_peers(task, attempt, ctx)
    restart = _restart_reason(task, attempt) if node.failed_stage != "start" else None  # it would fail again
    message = describe_failure(node)
    until = ctx.now + ctx.view.timeouts.drain_timeout_s
    if restart is None:
        return conclude(task, failure_reason(node), ctx, until=until, message=message)
    ctx.out.append(TimelineEntry("attempt.failed", task.index, attempt.generation, node.rank, restart, message))
    counted = int(restart is Reason.RESTART_ON_ERROR)
    after = count_recovery(give_up_attempt(task, attempt, restart, until, ctx.now), ctx)
    return replace(after, restarts_on_errors=task.restarts_on_errors + counted)


def _peers_are_alive(attempt: AttemptView) -> bool:
    """Whether the failure is the rank's own: no peer can have caused it by losing its machine.

    That holds if every rank has ended. It also holds if each other rank has reconnected since the failure, and the
    cloud has confirmed since then that their machines exist.
    """
    if all(n.has_stopped for n in attempt.nodes):
        return True
    since = attempt.failing_since
    described = since is not None and attempt.described_at is not None and attempt.described_at >= since
    return described and not any(is_disconnected(n) for n in attempt.nodes)


def _check_peers(task: TaskView, attempt: AttemptView, ctx: Context) -> TaskView | None:
    is_checking = attempt.failing_since is not None
    if is_checking and not describe_is_due(attempt, ctx.view.timeouts, ctx.now):
        return None
    ctx.out.append(DescribeMachines(task.index, attempt.generation))
    if not is_checking:
        # Earlier reports prove nothing: a machine that died silently counts as connected until its heartbeats are
        # missed, and its cloud may list it for longer.
        nodes = tuple(_require_reconnect(n, ctx.now) for n in attempt.nodes)
        attempt = replace(attempt, nodes=nodes, failing_since=ctx.now, described_at=None)
    return task.with_attempt(replace(attempt, describe_requested_at=ctx.now))


def _require_reconnect(node: NodeView, now: float) -> NodeView:
    """Mark the node as disconnected until it reconnects. The roll call in its directive makes it reconnect."""
    if node.has_stopped or node.phase is NodePhase.NOT_CONNECTED or node.disconnected_since is not None:
        return node
    return replace(node, connected=False, disconnected_since=now)


def _restart_reason(task: TaskView, attempt: AttemptView) -> Reason | None:
    codes = {n.exit_code for n in attempt.nodes if n.exit_code is not None and not n.interrupted}
    if codes & task.recovery.recover_on_exit_codes:
        return Reason.RESTART_ON_EXIT_CODE
    if task.restarts_on_errors < task.recovery.max_restarts_on_errors:
        return Reason.RESTART_ON_ERROR
    return None
