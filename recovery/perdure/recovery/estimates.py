"""How much work a task is, told by the steps that it has saved, where nobody said it."""

from __future__ import annotations

from perdure.recovery.events import Saved
from perdure.recovery.job import TaskView
from perdure.recovery.values import replace

# Steps to come may take so much longer than those seen: a deadline is better thought of as nearer.
_CAUTION = 1.1


def estimated(task: TaskView, event: Saved, saved_s: float) -> TaskView:
    """`task` with what `event`, of work up to `saved_s`, adds to what its steps tell.

    Seconds per step are those from the first step that was saved to this one, so neither a start from another job's
    checkpoint nor the time before the first one counts. One step tells nothing yet.
    """
    if event.step is None or event.total_steps is None:
        return task
    if task.first_step is None:
        return replace(task, first_step=event.step, first_step_s=saved_s)
    steps, seconds = event.step - task.first_step, saved_s - task.first_step_s
    if steps <= 0 or seconds <= 0:
        return task
    left = max(0, event.total_steps - event.step)
    return replace(task, estimated_s=saved_s + _CAUTION * left * seconds / steps)
