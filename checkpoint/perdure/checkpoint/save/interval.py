"""When to save: at a fixed interval, or at the optimum of Young and Daly for the measured cost of a save.

Their optimum is to save every sqrt(2 * cost * time between failures) seconds (J. W. Young, CACM 17(9), 1974; J. T.
Daly, FGCS 22(3), 2006). Saving more often loses time to saves; saving less often loses time to repeated work.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

UPTIME = "PERDURE_MEAN_UPTIME_S"  # from the controller, on machines that can be interrupted
# Assumed before anything was measured. Published median lives of spot V100s on AWS are 0.5–8 h.
PRIOR_UPTIME_S = 4 * 3600.0
_FIRST_INTERVAL_S = 60.0  # until the first save has shown what it costs
_MAX_WAIT_S, _MAX_WAIT_INTERVALS = 1800.0, 4  # a save waits at most so long for the upload of the last one
_MEASURED_SAVES = 5  # whose median counts: the first save of a process may be far slower than all others


def optimal_interval_s(cost_s: float, uptime_s: float, busy_s: float = 0.0) -> float:
    """The optimal seconds between saves.

    `cost_s`: how long a save blocks training. `uptime_s`: mean time between interruptions. `busy_s`: how long a save
    takes in all, which is the minimal distance of two saves.
    """
    return max(math.sqrt(2.0 * max(cost_s, 1e-3) * max(uptime_s, 1.0)), busy_s)


def mean_uptime_s(alive_s: float) -> float:
    """Mean seconds between interruptions of this program: what the controller expects of its machine, by what happened
    to others of its kind. Without a controller's word, 4 hours and the `alive_s` that the program has run for."""
    try:
        expected_s = float(os.environ[UPTIME])
    except (KeyError, ValueError):
        return PRIOR_UPTIME_S + alive_s
    return expected_s if 0 < expected_s < math.inf else PRIOR_UPTIME_S + alive_s


@dataclass
class SaveInterval:
    """Decides whether to save now. `every_steps` takes precedence over `every_s`; with neither, the interval is
    computed."""

    every_steps: int | None = None
    every_s: float | None = None
    total_steps: int | None = None  # a save is always due at the last step
    clock: Callable[[], float] = time.monotonic
    _costs_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MEASURED_SAVES))
    _busy_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MEASURED_SAVES))
    _upload_s: float = 0.0  # how long the last upload took
    _since: float = field(init=False)  # when the interval began, by `clock`
    _began: float = field(init=False)  # when the program began, by `clock`

    def __post_init__(self) -> None:
        if self.every_steps is not None and self.every_steps < 1:
            raise ValueError(f"every_steps must be at least 1, not {self.every_steps}")
        if self.every_s is not None and not self.every_s > 0:
            raise ValueError(f"every_s must be more than 0, not {self.every_s}")
        if self.total_steps is not None and self.total_steps < 1:
            raise ValueError(f"total_steps must be at least 1, not {self.total_steps}")
        self._since = self._began = self.clock()

    def is_due(self, step: int) -> bool:
        if self.is_last(step):
            return True
        if self.every_steps is not None:
            return step % self.every_steps == 0
        return self.clock() - self._since >= self.interval_s()

    def is_last(self, step: int) -> bool:
        return self.total_steps is not None and step >= self.total_steps

    def interval_s(self) -> float:
        """Seconds between saves, by the measurements so far."""
        if self.every_s is not None:
            return self.every_s
        if not self._costs_s:
            return _FIRST_INTERVAL_S
        busy_s = _typical(self._busy_s) if self._busy_s else 0.0
        return optimal_interval_s(_typical(self._costs_s), mean_uptime_s(self.clock() - self._began), busy_s)

    @property
    def waits_for_uploads(self) -> bool:
        """Whether a save that is due waits until the bucket has the last one: it would only wait behind it. Not if the
        user has chosen the interval, nor without end: a machine that loses its program needs no bucket."""
        if self.every_steps is not None or self.every_s is not None:
            return False
        max_wait_s = max(_MAX_WAIT_S, _MAX_WAIT_INTERVALS * self.interval_s(), 2 * self._upload_s)
        return self.clock() - self._since < max_wait_s

    def record_upload(self) -> None:
        """Record that the bucket has the last save now."""
        self._upload_s = self.clock() - self._since

    def record_save(self, cost_s: float) -> None:
        """Record that a save blocked training for `cost_s`, and begin the next interval."""
        self._costs_s.append(cost_s)
        self._since = self.clock()

    def record_busy(self, busy_s: float) -> None:
        """Record that a save took `busy_s` from its call to its commit."""
        self._busy_s.append(busy_s)


def _typical(seconds: Iterable[float]) -> float:
    """The lower median: of two, the smaller."""
    ordered = sorted(seconds)
    return ordered[(len(ordered) - 1) // 2]
