"""The forecast of a launch: the simulator's world, asked for no longer than a person waits gladly."""

from __future__ import annotations

import time
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from perdure.recovery.job import TaskView
from perdure.recovery.market import MarketView

if TYPE_CHECKING:
    from perdure.recovery.simulate.scenario import Run

# Processor time for all tasks of a job together, and how many markets are drawn for each.
BUDGET_S = 1.5
_FEWEST, _MOST = 4, 40

_NO_WORK = "nobody said how long the task runs when nothing is lost: add `work: 48h` under resources.job_recovery"


def forecast(task: TaskView, market: MarketView, now: float, *, budget_s: float = BUDGET_S) -> dict[str, Any]:
    """`records.Forecast` of `task`, launched `now`. `market` holds an offer that fits."""
    if task.recovery.work_s is None:
        return {"why_not": _NO_WORK, "assumed": None, "runs": 0, "cost": None, "seconds": None, "late": None}
    # The simulator is loaded by those alone who ask for it.
    from perdure.recovery.simulate.forecast import CHECKPOINT_EVERY_S, draws, summary

    until = time.thread_time() + budget_s
    runs: list[Run] = []
    for run in islice(draws(task, market, now), _MOST):
        runs.append(run)
        if len(runs) >= _FEWEST and time.thread_time() > until:
            break
    deadline_at = task.recovery.deadline_at
    found = summary(runs, None if deadline_at is None else deadline_at - now)
    told = len(market.history.tracks)
    known = f"what was learned of {told} offers" if told else "what is usual on spot markets: nothing was learned yet"
    return {
        "why_not": None,
        "assumed": f"{known}; a checkpoint every {CHECKPOINT_EVERY_S / 60:.0f} min",
        "runs": found.runs,
        "cost": asdict(found.cost),
        "seconds": None if found.seconds is None else asdict(found.seconds),
        "late": None if deadline_at is None else found.late,
    }
