"""Rules for a task that is over: it succeeded or was cancelled, and nothing of it runs any more."""

from __future__ import annotations

from perdure.recovery.actions import TimelineEntry
from perdure.recovery.frozen import replace
from perdure.recovery.job import AttemptView, TaskView
from perdure.recovery.reasons import Reason, describe, terminal_status
from perdure.recovery.rules.attempt_end import has_succeeded, immediately, kept_until, wind_down
from perdure.recovery.rules.context import Context, conclude
from perdure.recovery.statuses import AttemptState, TaskState

_MAY_SUCCEED = (AttemptState.RUNNING, AttemptState.DRAINING)
_ENDED = TaskState.ENDED


def succeed(task: TaskView, ctx: Context) -> TaskView | None:
    """Every rank of an attempt exited with 0, even if the attempt was already being drained.

    An attempt that was drained before it was permitted to run has done nothing, whatever its nodes report.
    """
    if task.outcome is not None:
        return None
    if not any(a.running_at is not None and a.state in _MAY_SUCCEED and has_succeeded(a) for a in task.attempts):
        return None
    return conclude(task, Reason.COMPLETED, ctx, until=immediately(ctx.now))


def cancel(task: TaskView, ctx: Context) -> TaskView | None:
    """The user cancelled the job. A later cancel with less grace shortens the drain."""
    request = ctx.job.cancel
    if request is None or task.outcome not in (None, Reason.USER_CANCELLED):
        return None
    until = request.at + request.grace_s if request.grace_s > 0 else immediately(request.at)
    if task.outcome is None:
        return conclude(task, Reason.USER_CANCELLED, ctx, until=until)
    attempts = tuple(wind_down(a, reason=Reason.USER_CANCELLED, until=until) for a in task.attempts)
    return replace(task, attempts=attempts) if attempts != task.attempts else None


def finalize(task: TaskView, ctx: Context) -> TaskView | None:
    """The outcome becomes final once nothing of the task can be running any more."""
    if task.outcome is None or task.state is _ENDED or any(a.may_run_workload for a in task.attempts):
        return None
    message = task.message or describe(task.outcome)
    data: dict[str, object] = {"status": str(terminal_status(task.outcome))}
    ctx.out.append(TimelineEntry("task.ended", task.index, reason=task.outcome, message=message, data=data))
    ended = replace(task, state=TaskState.ENDED, reason=task.outcome, message=message, ended_at=ctx.now, wake_at=None)
    for attempt in ended.attempts:
        if (until := kept_until(ended, attempt, ctx.job)) is not None:
            ctx.out.append(_kept_entry(ended, attempt, until))
    return ended


def _kept_entry(task: TaskView, attempt: AttemptView, until: float) -> TimelineEntry:
    cost = attempt.offer.price_per_hour * len(attempt.nodes)
    message = (
        f"the machines are kept for {task.recovery.keep_on_failure_s / 60:.0f} min, for ${cost:.4g} per hour, "
        "or until the job is cancelled"
    )
    return TimelineEntry("attempt.kept", task.index, attempt.generation, message=message, data={"until": until})
