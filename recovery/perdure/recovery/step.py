"""`step`: the one decision function. It takes an event and returns the job after it, the actions to perform, and when
to call it again.

`observe` folds the event into the job, and the rules of `rules.table` decide what follows.

Pure and total: every event in every state has a result, even if it is ignored. The controller and the simulator call
nothing else to decide.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.recovery.actions import Action, AvoidOffer, RecordObservation, Step, TimelineEntry
from perdure.recovery.events import Event
from perdure.recovery.frozen import replace
from perdure.recovery.job import AttemptView, JobView, TaskView, View
from perdure.recovery.observe import observe
from perdure.recovery.policies.strategies.granted_slot import STRATEGY as QUEUED
from perdure.recovery.reasons import Reason, describe, terminal_status
from perdure.recovery.rules.attempt_end import drain_overdue_at, kept_until
from perdure.recovery.rules.context import Context
from perdure.recovery.rules.limits import limit_times
from perdure.recovery.rules.machine_loss.detection import boot_timeout_at, describe_due_at, unreachable_at
from perdure.recovery.rules.table import apply_rules
from perdure.recovery.statuses import AttemptState, Status, TaskState

_WAITING, _RUNNING, _DRAINING = TaskState.WAITING, TaskState.RUNNING, AttemptState.DRAINING


def step(view: View, event: Event, now: float) -> Step:
    """Decide what follows from `event` at `now` (epoch seconds). Raises nothing; changes nothing."""
    out: list[Action] = []
    job = observe(view.job, event, now, out)
    while True:
        current = job.current_task
        ctx = Context(job, view, now, out)
        for task in job.tasks:
            if task is current or task.attempts:
                job = job.with_task(apply_rules(task, ctx, is_current=task is current))
        following = job.current_task
        if following is None or current is None or following.index == current.index:
            return Step(job, _of_the_market(job, out), _wake_at(view, job, following))
        job = _start_next_task(job, job.tasks[current.index], now, out)


def _of_the_market(job: JobView, out: Sequence[Action]) -> tuple[Action, ...]:
    """The actions, without what they would say of the slots of a cluster: these are no offers of the market."""
    if not out or job.tasks[0].recovery.strategy != QUEUED:
        return tuple(out)
    return tuple(action for action in out if not isinstance(action, AvoidOffer | RecordObservation))


def _start_next_task(job: JobView, ended: TaskView, now: float, out: list[Action]) -> JobView:
    """Start the task after `ended` if that succeeded; else end all tasks after it."""
    if ended.status is Status.SUCCEEDED:
        following = job.tasks[ended.index + 1]
        return job.with_task(replace(following, reason=Reason.PREVIOUS_TASK_DONE, wake_at=now))
    cause = Reason.USER_CANCELLED if job.cancel else Reason.EARLIER_TASK_ENDED
    message = describe(cause)
    for task in job.tasks[ended.index + 1 :]:
        data: dict[str, object] = {"status": str(terminal_status(cause))}
        out.append(TimelineEntry("task.ended", task.index, reason=cause, message=message, data=data))
        ending = replace(task, state=TaskState.ENDED, outcome=cause, reason=cause, message=message, ended_at=now)
        job = job.with_task(replace(ending, wake_at=None))
    return job


def _wake_at(view: View, job: JobView, current: TaskView | None) -> float | None:
    """When the rules must be evaluated again if no event comes; None when only an event can change anything."""
    times: list[float] = []
    for task in job.tasks:
        for attempt in task.attempts:
            if not (attempt.terminating or attempt.is_steady):
                times += _attempt_times(attempt, view)
                if (until := kept_until(task, attempt, job)) is not None and task.ended_at is not None:
                    times.append(until)
    if current is not None and current.state is _WAITING and current.storage_ready:
        times.append(current.wake_at or 0.0)
    if current is not None and current.recovery.has_limits:
        times += limit_times(current, view)
    if current is not None and current.state is _RUNNING and current.wake_at is not None:
        times += [current.wake_at] if current.replacement is None else []
    return min(times, default=None)


def _attempt_times(attempt: AttemptView, view: View) -> list[float]:
    times = [boot_timeout_at(attempt, view), describe_due_at(attempt, view.timeouts)]
    if attempt.state is _DRAINING:
        times.append(drain_overdue_at(attempt, view))
    if attempt.is_wanted and not attempt.healthy:
        times += unreachable_at(attempt, view)
    return [t for t in times if t is not None]
