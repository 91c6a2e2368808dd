"""When a save pays: as often as a fixed interval says, or as Young and Daly found for measured costs.

Their optimum is to save every sqrt(2 * cost * time between failures) seconds (J. W. Young, CACM 17(9), 1974; J. T.
Daly, FGCS 22(3), 2006): more often loses time to saving, more rarely loses it to work done again.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone

# Before anything was measured: a spot GPU lives for some hours (medians of 0.5–8 h are published for V100s on AWS).
PRIOR_LIFE_S = 4 * 3600.0
_FIRST_INTERVAL_S = 60.0  # until the first save has shown what it costs
_MOST_OVERHEAD = 0.1  # never spend more of the time on saving than this, whatever the formula says


def best_interval_s(cost_s: float, life_s: float, busy_s: float = 0.0) -> float:
    """Seconds between saves. `cost_s`: how long a save holds training up; `life_s`: mean time between interruptions;
    `busy_s`: how long it works behind training, which is the least that two saves can be apart."""
    optimum = math.sqrt(2.0 * max(cost_s, 1e-3) * max(life_s, 1.0))
    return max(optimum, cost_s / _MOST_OVERHEAD, busy_s)


def mean_life_s(now: float) -> float:
    """Mean time between interruptions of this task so far, in seconds, with one life of the prior counted in.

    The task's ID tells when it was submitted, the generation how often it had to be moved since.
    """
    generation = os.environ.get("PERDURE_GENERATION", "")
    began = _submitted_at(os.environ.get("SKYPILOT_TASK_ID", ""))
    if not generation.isdigit() or began is None or now < began:
        return PRIOR_LIFE_S
    interruptions = max(0, int(generation) - 1)
    return (now - began + PRIOR_LIFE_S) / (interruptions + 1)


def _submitted_at(task_id: str) -> float | None:
    found = re.match(r"sky-managed-(\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d-\d{6})_", task_id)
    if found is None:
        return None
    try:
        at = datetime.strptime(found.group(1), "%Y-%m-%d-%H-%M-%S-%f")
    except ValueError:
        return None
    return at.replace(tzinfo=timezone.utc).timestamp()


@dataclass
class Pace:
    """Answers whether to save now. `every_steps` wins over `every_s`; with neither, the interval is computed. The last
    of `total_steps` is always due.

    `cost_s` and `busy_s` are smoothed measurements of saves (None: none yet). `clock`: monotonic seconds; `now`: epoch.
    """

    every_steps: int | None = None
    every_s: float | None = None
    total_steps: int | None = None
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    cost_s: float | None = None
    busy_s: float = 0.0
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        if self.every_steps is not None and self.every_steps < 1:
            raise ValueError(f"a save every {self.every_steps} steps means nothing; give 1 or more")
        if self.every_s is not None and not self.every_s > 0:
            raise ValueError(f"a save every {self.every_s} seconds means nothing; give more than 0")
        if self.total_steps is not None and self.total_steps < 1:
            raise ValueError(f"a run of {self.total_steps} steps means nothing; give 1 or more")
        self._since = self.clock()

    def is_due(self, step: int) -> bool:
        if self.is_last(step):
            return True
        if self.every_steps is not None:
            return step % self.every_steps == 0
        return self.clock() - self._since >= self.interval_s()

    def is_last(self, step: int) -> bool:
        return self.total_steps is not None and step >= self.total_steps

    def interval_s(self) -> float:
        """Seconds between saves, as things stand."""
        if self.every_s is not None:
            return self.every_s
        if self.cost_s is None:
            return _FIRST_INTERVAL_S
        return best_interval_s(self.cost_s, mean_life_s(self.now()), self.busy_s)

    def saved(self, cost_s: float) -> None:
        """A save held training up for `cost_s`; the next interval begins."""
        self.cost_s = cost_s if self.cost_s is None else 0.7 * self.cost_s + 0.3 * cost_s
        self._since = self.clock()

    def worked(self, busy_s: float) -> None:
        """A save took `busy_s` from its call to its commit."""
        self.busy_s = busy_s if not self.busy_s else 0.7 * self.busy_s + 0.3 * busy_s
