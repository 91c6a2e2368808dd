"""`step`: the one decision function. An event comes in; out come the job as it is now believed to be, what to do, and
when to look again.

Pure and total: every event in every state has an answer, even if it is "ignored". The daemon and the simulator call
nothing else.
"""

from __future__ import annotations

from perdure.recovery.actions import Action, Note, Step
from perdure.recovery.attempts import boot_timeout_at, overdue_at, recheck_at, unreachable_at
from perdure.recovery.events import Event
from perdure.recovery.job import AttemptView, JobView, TaskView, View
from perdure.recovery.observe import observe
from perdure.recovery.reasons import Reason, terminal_status, text
from perdure.recovery.settle import settle
from perdure.recovery.statuses import AttemptState, Status, TaskState
from perdure.recovery.turns import Context
from perdure.recovery.values import replace

_WAITING, _RUNNING, _DRAINING = TaskState.WAITING, TaskState.RUNNING, AttemptState.DRAINING


def step(view: View, event: Event, now: float) -> Step:
    """Decide what follows from `event` at `now` (epoch seconds). Raises nothing; touches nothing."""
    out: list[Action] = []
    job = observe(view.job, event, now, out)
    while True:
        current = job.current_task
        ctx = Context(job, view, now, out)
        for task in job.tasks:
            if task is current or task.attempts:
                job = job.with_task(settle(task, ctx, is_current=task is current))
        following = job.current_task
        if following is None or current is None or following.index == current.index:
            return Step(job, tuple(out), _wake_at(view, job, following))
        job = _go_on(job, job.tasks[current.index], now, out)


def _go_on(job: JobView, ended: TaskView, now: float, out: list[Action]) -> JobView:
    """After `ended`: the next task's turn, or the end of all that were to follow."""
    if ended.status is Status.SUCCEEDED:
        following = job.tasks[ended.index + 1]
        return job.with_task(replace(following, reason=Reason.PREVIOUS_TASK_DONE, wake_at=now))
    cause = Reason.USER_CANCELLED if job.cancel else Reason.EARLIER_TASK_ENDED
    for task in job.tasks[ended.index + 1 :]:
        data: dict[str, object] = {"status": str(terminal_status(cause))}
        out.append(Note("task.ended", task.index, reason=cause, message=text(cause), data=data))
        ending = replace(task, state=TaskState.ENDED, outcome=cause, reason=cause, message=text(cause), ended_at=now)
        job = job.with_task(replace(ending, wake_at=None))
    return job


def _wake_at(view: View, job: JobView, current: TaskView | None) -> float | None:
    """When `job` must be looked at again if nothing happens; None when only an observation can move it."""
    times: list[float] = []
    for task in job.tasks:
        for attempt in task.attempts:
            if not (attempt.terminating or attempt.runs_undisturbed):
                times += _attempt_times(attempt, view)
    if current is not None and current.state is _WAITING and current.storage_ready:
        times.append(current.wake_at or 0.0)
    if current is not None and current.state is _RUNNING and current.wake_at is not None:
        times += [current.wake_at] if current.replacement is None else []
    return min(times, default=None)


def _attempt_times(attempt: AttemptView, view: View) -> list[float]:
    times = [boot_timeout_at(attempt, view), recheck_at(attempt, view.limits)]
    if attempt.state is _DRAINING:
        times.append(overdue_at(attempt, view))
    if attempt.is_wanted and not attempt.is_well:
        times += unreachable_at(attempt, view)
    return [t for t in times if t is not None]
