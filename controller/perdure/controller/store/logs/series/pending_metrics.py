"""What nodes have reported since their metrics were last written: some minutes of each node, in little memory."""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from perdure.controller.store.logs.series.metric_series import MACHINE, REPORTED_PREFIX, STEP
from perdure.controller.store.records.agent_connections import Place

WRITE_INTERVAL_S = 300.0
MAX_PENDING = 30
"""Of a node: older ones are dropped while the database is unavailable."""

Points = list[tuple[float, dict[str, float]]]


@dataclass(frozen=True, slots=True)
class _Measured:
    at: float
    machine: array[float]
    step: int | None
    values: Mapping[str, float] | None


@dataclass(slots=True)
class _Pending:
    due_at: float
    measured: list[_Measured] = field(default_factory=list)


class PendingMetrics:
    """From any thread. `now`: the controller's clock; `speed`: how fast it runs."""

    def __init__(self, now: Callable[[], float], speed: float = 1.0) -> None:
        self._now = now
        self._interval_s = WRITE_INTERVAL_S * speed
        self._lock = threading.Lock()
        self._pending: dict[Place, _Pending] = {}

    def add(
        self,
        place: Place,
        at: float,
        machine: Iterable[float],
        step: int | None = None,
        values: Mapping[str, float] | None = None,
    ) -> None:
        """Keep what a node reports. `machine`: in the order of MACHINE; NaN: there is none. `values`: the program's."""
        measured = _Measured(at, array("f", machine), step, values or None)
        with self._lock:
            pending = self._pending.get(place)
            if pending is None:
                pending = self._pending[place] = _Pending(at + self._interval_s)
            pending.measured.append(measured)
            del pending.measured[:-MAX_PENDING]

    def make_due(self, place: Place) -> None:
        """The node is disconnected: what it reported is written soon, for whoever it connects to next."""
        with self._lock:
            if (pending := self._pending.get(place)) is not None:
                pending.due_at = -math.inf

    def due(self, limit: int, *, all_nodes: bool = False) -> dict[Place, Points]:
        """What is to be written now, of at most `limit` nodes, or of all that have reported something. It is kept until
        `written`."""
        now = math.inf if all_nodes else self._now()
        with self._lock:
            due = [place for place, pending in self._pending.items() if pending.due_at <= now][:limit]
            return {place: _points(self._pending[place].measured) for place in due}

    def written(self, numbers: Mapping[Place, int]) -> None:
        """Forget the first so many points of each of these nodes: they are in the database."""
        now = self._now()
        with self._lock:
            for place, number in numbers.items():
                pending = self._pending.get(place)
                if pending is None:
                    continue
                del pending.measured[:number]
                pending.due_at = now + self._interval_s
                if not pending.measured:
                    del self._pending[place]

    def of_job(self, job_id: int) -> dict[Place, Points]:
        """What is not written yet of the job's nodes that are connected here."""
        with self._lock:
            return {place: _points(one.measured) for place, one in self._pending.items() if place[0][0] == job_id}


def _points(measured: Iterable[_Measured]) -> Points:
    points = []
    for one in measured:
        values = {name: value for name, value in zip(MACHINE, one.machine, strict=True) if not math.isnan(value)}
        if one.step is not None:
            values[STEP] = float(one.step)
        values |= {REPORTED_PREFIX + name: value for name, value in (one.values or {}).items()}
        points.append((one.at, values))
    return points
