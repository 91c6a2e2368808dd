"""Rules for machines of a running attempt that are lost, or about to be: the task recovers elsewhere."""

from __future__ import annotations

from perdure.recovery.actions import DescribeMachines, TimelineEntry
from perdure.recovery.frozen import replace
from perdure.recovery.job import TaskView
from perdure.recovery.reasons import Reason, describe, meaning_of
from perdure.recovery.rules.attempt_end import drain_deadline, immediately
from perdure.recovery.rules.context import Context, conclude, count_recovery, give_up_attempt, record_loss
from perdure.recovery.rules.machine_loss.detection import describe_is_due, is_disconnected, loss_reason
from perdure.recovery.rules.machine_loss.evidence import COOLDOWN_REASONS
from perdure.recovery.statuses import AttemptState

# Only a loss in one of these states counts as a recovery: before them, nothing of the user's had begun.
_HAD_BEGUN = {AttemptState.SETTING_UP, AttemptState.READY, AttemptState.RUNNING}


def handle_loss(task: TaskView, ctx: Context) -> TaskView | None:
    """A machine was lost or is about to be: the other nodes save their work, and the task recovers if it may."""
    attempt = task.current
    if attempt is None or task.outcome is not None:
        return None
    reason = loss_reason(attempt, ctx.view, ctx.now)
    if reason is None:
        return None
    saves = attempt.state is AttemptState.RUNNING
    recovers = task.recovery.recovers
    deadline = drain_deadline(attempt, ctx.view.timeouts, ctx.now, recovers=recovers)
    until = deadline if saves else immediately(ctx.now)
    message = describe(reason)
    data: dict[str, object] = {"offer": attempt.offer.name, "was": attempt.state.value}
    ctx.out.append(
        TimelineEntry("attempt.lost", task.index, attempt.generation, reason=reason, message=message, data=data)
    )
    record_loss(attempt, reason, ctx)
    if task.has_run and not recovers:
        return conclude(task, Reason.NOT_RECOVERED, ctx, until=until, message=message)
    counts = meaning_of(reason).is_recovery and attempt.state in _HAD_BEGUN
    after = count_recovery(give_up_attempt(task, attempt, reason, until, ctx.now), ctx)
    return replace(
        after,
        recovery_count=task.recovery_count + int(counts),
        preempted_from=attempt.offer if reason in COOLDOWN_REASONS else task.preempted_from,
    )


def describe_disconnected(task: TaskView, ctx: Context) -> TaskView | None:
    """A broken connection is the first sign of a loss: ask the cloud at once, and then repeatedly."""
    for a in task.attempts:
        if (
            not a.healthy
            and any(is_disconnected(n) for n in a.nodes)
            and describe_is_due(a, ctx.view.timeouts, ctx.now)
        ):
            ctx.out.append(DescribeMachines(task.index, a.generation))
            return task.with_attempt(replace(a, describe_requested_at=ctx.now))
    return None
