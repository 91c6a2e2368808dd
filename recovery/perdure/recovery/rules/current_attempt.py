"""Rules for the attempt that is meant to run: it loses machines, fails, or makes progress."""

from __future__ import annotations

from perdure.recovery.actions import DescribeMachines, TimelineEntry
from perdure.recovery.frozen import replace
from perdure.recovery.job import AttemptView, NodeView, TaskView
from perdure.recovery.reasons import Reason, describe, meaning_of
from perdure.recovery.rules.attempts import (
    describe_due_at,
    drain_deadline,
    failed_node,
    immediately,
    is_disconnected,
    is_set_up,
    loss_reason,
)
from perdure.recovery.rules.transitions import (
    COOLDOWN_REASONS,
    Context,
    conclude,
    describe_failure,
    failure_reason,
    give_up_attempt,
    record_loss,
    record_survival,
)
from perdure.recovery.statuses import AttemptState, NodePhase, TaskState

# Only a loss in one of these states counts as a recovery: before them, nothing of the user's had begun.
_HAD_BEGUN = {AttemptState.SETTING_UP, AttemptState.READY, AttemptState.RUNNING}


# --- losses -----------------------------------------------------------------------------------------------------------


def handle_loss(task: TaskView, ctx: Context) -> TaskView | None:
    """A machine was lost or is about to be: the other nodes save their work, and the task recovers."""
    attempt = task.current
    if attempt is None or task.outcome is not None:
        return None
    reason = loss_reason(attempt, ctx.view, ctx.now)
    if reason is None:
        return None
    saves = attempt.state is AttemptState.RUNNING
    until = drain_deadline(attempt, ctx.view.timeouts, ctx.now) if saves else immediately(ctx.now)
    message = describe(reason)
    data: dict[str, object] = {"offer": attempt.offer.name, "was": attempt.state.value}
    ctx.out.append(
        TimelineEntry("attempt.lost", task.index, attempt.generation, reason=reason, message=message, data=data)
    )
    record_loss(attempt, reason, ctx)
    counts = meaning_of(reason).is_recovery and attempt.state in _HAD_BEGUN
    return replace(
        give_up_attempt(task, attempt, reason, until, ctx.now),
        recovery_count=task.recovery_count + int(counts),
        preempted_from=attempt.offer if reason in COOLDOWN_REASONS else task.preempted_from,
    )


def describe_disconnected(task: TaskView, ctx: Context) -> TaskView | None:
    """A broken connection is the first sign of a loss: ask the cloud at once, and then repeatedly."""
    for a in task.attempts:
        if not a.healthy and any(is_disconnected(n) for n in a.nodes) and _describe_is_due(a, ctx):
            ctx.out.append(DescribeMachines(task.index, a.generation))
            return task.with_attempt(replace(a, describe_requested_at=ctx.now))
    return None


def _describe_is_due(attempt: AttemptView, ctx: Context) -> bool:
    due_at = describe_due_at(attempt, ctx.view.timeouts)
    return due_at is not None and ctx.now >= due_at


# --- failures ---------------------------------------------------------------------------------------------------------


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
    restart = _restart_reason(task, attempt)
    message = describe_failure(node)
    until = ctx.now + ctx.view.timeouts.drain_timeout_s
    if restart is None:
        return conclude(task, failure_reason(node), ctx, until=until, message=message)
    ctx.out.append(TimelineEntry("attempt.failed", task.index, attempt.generation, node.rank, restart, message))
    counted = int(restart is Reason.RESTART_ON_ERROR)
    after = give_up_attempt(task, attempt, restart, until, ctx.now)
    return replace(after, restarts_on_errors=task.restarts_on_errors + counted)


def _peers_are_alive(attempt: AttemptView) -> bool:
    """Every rank has ended, or reconnected since the failure with its machine existing according to the cloud."""
    if all(n.has_stopped for n in attempt.nodes):
        return True
    since = attempt.failing_since
    described = since is not None and attempt.described_at is not None and attempt.described_at >= since
    return described and not any(is_disconnected(n) for n in attempt.nodes)


def _check_peers(task: TaskView, attempt: AttemptView, ctx: Context) -> TaskView | None:
    is_checking = attempt.failing_since is not None
    if is_checking and not _describe_is_due(attempt, ctx):
        return None
    ctx.out.append(DescribeMachines(task.index, attempt.generation))
    if not is_checking:
        # Earlier reports prove nothing: a machine that died silently counts as connected until its heartbeats are
        # missed, and its cloud may list it for longer.
        nodes = tuple(_require_reconnect(n, ctx.now) for n in attempt.nodes)
        attempt = replace(attempt, nodes=nodes, failing_since=ctx.now, described_at=None)
    return task.with_attempt(replace(attempt, describe_requested_at=ctx.now))


def _require_reconnect(node: NodeView, now: float) -> NodeView:
    """`node` as disconnected until it reconnects, which the roll call of its directive makes it do."""
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


# --- progress ---------------------------------------------------------------------------------------------------------


def advance(task: TaskView, ctx: Context) -> TaskView | None:
    """BOOTING → SETTING_UP → READY → RUNNING; the last step only when no other attempt can be running."""
    attempt = task.replacement or task.current
    if attempt is None or task.outcome is not None:
        return None
    if attempt.state is AttemptState.RUNNING:
        return None
    if attempt.state is AttemptState.BOOTING and all(n.phase is not NodePhase.NOT_CONNECTED for n in attempt.nodes):
        ctx.out.append(TimelineEntry("attempt.setting_up", task.index, attempt.generation))
        return task.with_attempt(replace(attempt, state=AttemptState.SETTING_UP))
    if not is_set_up(attempt):
        return None
    if attempt.state is AttemptState.SETTING_UP:
        record_survival(attempt, ctx, started_s=ctx.now - attempt.requested_at)
        return task.with_attempt(replace(attempt, state=AttemptState.READY))
    other_may_run = any(a.may_run_workload for a in task.attempts if a.generation != attempt.generation)
    if attempt.state is AttemptState.READY and not other_may_run:
        return _start_running(task, attempt, ctx)
    return None


def _start_running(task: TaskView, attempt: AttemptView, ctx: Context) -> TaskView:
    data: dict[str, object] = {"offer": attempt.offer.name}
    ctx.out.append(TimelineEntry("attempt.running", task.index, attempt.generation, data=data))
    task = task.with_attempt(replace(attempt, state=AttemptState.RUNNING, running_at=ctx.now))
    started_at = task.started_at if task.started_at is not None else ctx.now
    return replace(
        task,
        state=TaskState.RUNNING,
        has_run=True,
        started_at=started_at,
        run_since=ctx.now,
        resumed_s=task.durable_s,
        wake_at=ctx.now,
    )
