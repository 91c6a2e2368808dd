"""Rules that move a running task to a better offer: the replacement is set up first, then the old attempt drains.

The attempt that runs is `task.current`; the one that shall take over is `task.replacement`. Until that is READY,
nothing that happens to it affects the attempt that runs.
"""

from __future__ import annotations

from perdure.recovery.actions import TimelineEntry
from perdure.recovery.frozen import replace
from perdure.recovery.job import TaskView
from perdure.recovery.policies.decisions import Move, Stay
from perdure.recovery.policies.registry import policy_or_default
from perdure.recovery.reasons import Reason, describe
from perdure.recovery.rules.attempt_end import failed_node, immediately, wind_down
from perdure.recovery.rules.context import (
    MIN_WAKE_DELAY_S,
    Context,
    count_recovery,
    describe_failure,
    earliest_attempt_at,
    failure_reason,
    give_up_attempt,
    record_loss,
    record_survival,
    request_attempt,
)
from perdure.recovery.rules.machine_loss.detection import loss_reason
from perdure.recovery.statuses import AttemptState, TaskState

# A failure on one replacement is likely on the next one as well; the task runs, so there is time.
_RETRY_AFTER_FAILURE_S = 3600.0

_RUNNING = TaskState.RUNNING


def maybe_move(task: TaskView, ctx: Context) -> TaskView | None:
    """Ask the policy whether a better offer is worth a move, when the time has come that it named."""
    runs = task.state is _RUNNING and task.outcome is None and task.replacement is None
    if not runs or task.wake_at is None or ctx.now < task.wake_at:
        return None
    if (earliest_at := earliest_attempt_at(task, ctx)) > ctx.now:  # its replacements are lost too often
        return replace(task, wake_at=earliest_at)
    match policy_or_default(task.recovery.strategy).reconsider(task, ctx.market, ctx.now):
        case Stay(until):
            return replace(task, wake_at=until if until is None else max(until, ctx.now + MIN_WAKE_DELAY_S))
        case Move(offer, why):
            return request_attempt(task, offer, ctx, state=_RUNNING, why=why)


def switch_over(task: TaskView, ctx: Context) -> TaskView | None:
    """The replacement is READY: the attempt that runs saves its work and ends."""
    running, ready = task.current, task.replacement
    if running is None or ready is None or ready.state is not AttemptState.READY or task.outcome is not None:
        return None
    data: dict[str, object] = {"from": running.offer.name, "to": ready.offer.name}
    ctx.out.append(TimelineEntry("attempt.moving", task.index, running.generation, reason=Reason.MOVED, data=data))
    record_survival(running, ctx)
    return give_up_attempt(task, running, Reason.MOVED, ctx.now + ctx.view.timeouts.drain_timeout_s, ctx.now)


def drop_lost_replacement(task: TaskView, ctx: Context) -> TaskView | None:
    """The replacement was lost, or failed before it took over: it is dropped, and the current attempt runs on."""
    attempt = task.replacement
    if attempt is None or task.outcome is not None:
        return None
    failed = failed_node(attempt)
    reason = failure_reason(failed) if failed else loss_reason(attempt, ctx.view, ctx.now)
    if reason is None:
        return None
    message = describe_failure(failed) if failed else describe(reason)
    data: dict[str, object] = {"offer": attempt.offer.name, "was": attempt.state.value}
    ctx.out.append(
        TimelineEntry("replacement.lost", task.index, attempt.generation, reason=reason, message=message, data=data)
    )
    record_loss(attempt, reason, ctx)
    task = count_recovery(task.with_attempt(wind_down(attempt, reason=reason, until=immediately(ctx.now))), ctx)
    return replace(task, wake_at=ctx.now + (_RETRY_AFTER_FAILURE_S if failed else 0.0))
