"""How many jobs a launch makes: as many as were requested, or one for each combination of a sweep."""

from __future__ import annotations

from perdure.controller.store import grid
from perdure.controller.submit.compiler import CompiledJob
from perdure.controller.submit.errors import impossible_sweep

MAX_SWEEP = 10_000


def job_count(compiled: CompiledJob, num_jobs: int, *, on_cluster: bool = False) -> int:
    """The number of jobs of a launch that requests `num_jobs`. Raises RequestRejected for a sweep that cannot be
    launched."""
    grids = [task.spec["sweep"] for task in compiled.tasks if task.spec.get("sweep")]
    if not grids:
        return num_jobs
    count = grid.size(grids[0])
    if count > MAX_SWEEP:
        raise impossible_sweep(f"it has {count:,} combinations, of at most {MAX_SWEEP:,}", "give fewer values")
    if num_jobs not in (1, count):
        problem = f"it has {count} combinations, and {num_jobs} jobs were requested"
        raise impossible_sweep(problem, "leave out the number of jobs: each combination is a job")
    if len(compiled.tasks) > 1 or on_cluster:
        raise impossible_sweep(
            "its job is one of a pipeline, or of a cluster", "launch its task by `perdure jobs launch`"
        )
    return count
