"""The forecast of a launch: simulated runs of a task, within a time budget that suits an interactive command."""

from __future__ import annotations

import time
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from perdure.recovery.job import TaskView
from perdure.recovery.market.view import MarketView

if TYPE_CHECKING:
    from perdure.recovery.simulate.scenario import Run

BUDGET_S = 1.5  # processor time, for all tasks of a job together
_MIN_RUNS, _MAX_RUNS = 4, 40  # simulated runs of a task

_NO_WORK = "the amount of work is unknown: add `work: 48h` (without losses) under resources.job_recovery"


def forecast(task: TaskView, market: MarketView, now: float, *, budget_s: float = BUDGET_S) -> dict[str, Any]:
    """The `api_types.Forecast` of a task that is launched `now`. `market` must hold an offer that fits."""
    if task.recovery.work_s is None:
        return {"unavailable_reason": _NO_WORK, "assumed": None, "runs": 0, "cost": None, "seconds": None, "late": None}
    # Imported here, because only forecasts need the simulator.
    from perdure.recovery.simulate.forecast import CHECKPOINT_EVERY_S, draw_runs, summarize_runs

    until = time.thread_time() + budget_s
    runs: list[Run] = []
    for run in islice(draw_runs(task, market, now), _MAX_RUNS):
        runs.append(run)
        if len(runs) >= _MIN_RUNS and time.thread_time() > until:
            break
    deadline_at = task.recovery.deadline_at
    summary = summarize_runs(runs, None if deadline_at is None else deadline_at - now)
    observed = len(market.history.tracks)
    basis = f"observations of {observed} offers" if observed else "typical spot markets: nothing was observed yet"
    return {
        "unavailable_reason": None,
        "assumed": f"{basis}; a checkpoint every {CHECKPOINT_EVERY_S / 60:.0f} min",
        "runs": summary.runs,
        "cost": asdict(summary.cost),
        "seconds": None if summary.seconds is None else asdict(summary.seconds),
        "late": None if deadline_at is None else summary.late,
    }
