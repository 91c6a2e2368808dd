"""How long the tasks of a job took by the clock: those of a pipeline run one after another."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.cli.output import text
from perdure.sdk.connection import api_types


def of_job(tasks: Sequence[api_types.Job]) -> float:
    """Seconds from the submission to the end of the last task, or to now."""
    return max(task["total_duration_s"] for task in tasks)


def of_tasks(tasks: Sequence[api_types.Job]) -> dict[int, float | None]:
    """Seconds of each task by its index, from the end of the one before; None for a task that has not begun."""
    seconds: dict[int, float | None] = {}
    waited_s = 0.0  # for the tasks before, since the submission
    for task in sorted(tasks, key=lambda task: task["task_index"]):
        has_begun = task["task_index"] == 0 or task["generation"] > 0 or task["started_at"] is not None
        seconds[task["task_index"]] = max(0.0, task["total_duration_s"] - waited_s) if has_begun else None
        if task["ended_at"] is not None:
            waited_s = text.to_epoch(task["ended_at"]) - text.to_epoch(task["submitted_at"])
    return seconds
