"""Rules for an attempt that comes up: its nodes connect, are set up, and run once nothing else of the task does."""

from __future__ import annotations

from perdure.recovery.actions import TimelineEntry
from perdure.recovery.frozen import replace
from perdure.recovery.job import AttemptView, TaskView
from perdure.recovery.rules.attempt_end import is_set_up
from perdure.recovery.rules.context import Context, record_survival
from perdure.recovery.statuses import AttemptState, NodePhase, TaskState


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
