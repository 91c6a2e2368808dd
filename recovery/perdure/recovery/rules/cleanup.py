"""Rules for attempts on their way out: drained, then terminated, then gone."""

from __future__ import annotations

from perdure.recovery.actions import Terminate, TimelineEntry
from perdure.recovery.frozen import replace
from perdure.recovery.job import TaskView
from perdure.recovery.rules.attempt_end import drain_overdue_at, kept_until
from perdure.recovery.rules.context import Context
from perdure.recovery.rules.limits import cost_of
from perdure.recovery.statuses import AttemptState, TaskState

_DRAINING, _STOPPED = AttemptState.DRAINING, AttemptState.STOPPED


def drop_gone_attempts(task: TaskView, ctx: Context) -> TaskView | None:
    left = tuple([a for a in task.attempts if a.is_live])
    if len(left) == len(task.attempts):
        return None
    gone = [a for a in task.attempts if not a.is_live]
    task = replace(task, spent_usd=task.spent_usd + sum(cost_of(a, ctx.now) for a in gone))
    newest_is_gone = not task.attempts[-1].is_live
    if newest_is_gone and task.state is TaskState.PROVISIONING:
        return replace(task, attempts=left, state=TaskState.WAITING, wake_at=ctx.now)
    if newest_is_gone and task.state is TaskState.RUNNING and task.wake_at is None:
        # The launch of a replacement was refused: look for another one at once. A replacement that failed has set its
        # own `wake_at`.
        return replace(task, attempts=left, wake_at=ctx.now)
    return replace(task, attempts=left)


def stop_drained_attempts(task: TaskView, ctx: Context) -> TaskView | None:
    for a in task.attempts:
        if a.state is _DRAINING and all(n.has_stopped for n in a.nodes):
            message = "; ".join(n.message for n in a.nodes if n.failed_stage is not None and n.message)
            ctx.out.append(TimelineEntry("attempt.stopped", task.index, a.generation, reason=a.reason, message=message))
            return task.with_attempt(replace(a, state=AttemptState.STOPPED))
    return None


def terminate_stopped_attempts(task: TaskView, ctx: Context) -> TaskView | None:
    for a in task.attempts:
        stopped = a.state is _STOPPED
        overdue_at = drain_overdue_at(a, ctx.view) if a.state is _DRAINING else None
        is_overdue = overdue_at is not None and overdue_at <= ctx.now
        until = kept_until(task, a, ctx.job)
        if until is not None and until > ctx.now:
            continue
        if (stopped or is_overdue) and not a.terminating:
            ctx.out.append(Terminate(task.index, a.generation))
            return task.with_attempt(replace(a, terminating=True))
    return None
