"""Numbers over time in a bounded number of points: whenever there are too many, points become twice as wide. Pure.

A point stands for the `resolution_s` seconds around it, and has the means of what was measured in them. So a series of
an hour has every minute, and one of a month every few hours, in the same space.
"""

from __future__ import annotations

import json
import math
import zlib
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MAX_POINTS = 360
MAX_COLUMNS = 24
FIRST_RESOLUTION_S = 7.5  # 60 s is a power of two of it

STEP = "step"
#: Of the machine: shares of what it has (0 to 1), bytes per second, watts over all GPUs, the hottest GPU's temperature.
MACHINE = (
    "cpu",
    "memory",
    "disk",
    "received_per_s",
    "sent_per_s",
    "gpu",
    "gpu_memory",
    "gpu_power_w",
    "gpu_temperature_c",
)
REPORTED_PREFIX = "."
"""Of the columns that the program has named."""

_VERSION = b"\x01"
_MAX_WEIGHT = 2**16 - 1
_NONE = math.nan
_LEVEL = 1  # zlib's fastest; the next ones save 5 % of the space for twice the time


@dataclass
class MetricSeries:
    """`at`: the mean time of each point (epoch seconds), ascending. `columns`: a value for each point, NaN where there
    is none. The step of a point is the highest one."""

    resolution_s: float = FIRST_RESOLUTION_S
    at: array[float] = field(default_factory=lambda: array("d"))
    columns: dict[str, array[float]] = field(default_factory=dict)
    _weights: array[int] = field(default_factory=lambda: array("H"))

    def __len__(self) -> int:
        return len(self.at)

    def add(self, at: float, values: Mapping[str, float]) -> None:
        """Add what was measured after the last point. Names beyond `MAX_COLUMNS` are ignored."""
        if self.at:
            at = max(at, self.at[-1])  # a clock was set back
        self._append(at, values, 1)
        while len(self) > MAX_POINTS:
            self._widen(self.resolution_s * 2)

    def coarsened(self, max_points: int) -> MetricSeries:
        """The same in at most `max_points` points (at least 2)."""
        series = self
        while len(series) > max(2, max_points):
            series = MetricSeries(series.resolution_s, series.at[:], dict(series.columns), series._weights[:])
            series._widen(series.resolution_s * 2)
        return series

    def encode(self) -> bytes:
        """As bytes, little-endian as all machines are that run a controller."""
        head = {"resolution_s": self.resolution_s, "points": len(self), "columns": list(self.columns)}
        parts = [json.dumps(head).encode(), b"\n", self.at.tobytes(), self._weights.tobytes()]
        parts += [column.tobytes() for column in self.columns.values()]
        return _VERSION + zlib.compress(b"".join(parts), _LEVEL)

    @classmethod
    def decode(cls, data: bytes) -> MetricSeries:
        """The series of `encode`. Raises ValueError for anything else."""
        if data[:1] != _VERSION:
            raise ValueError("metrics of another version")
        try:
            head, _, body = zlib.decompress(data[1:]).partition(b"\n")
            fields = json.loads(head)
            count, names = int(fields["points"]), list(fields["columns"])
            arrays: list[array[float] | array[int]] = []
            for code in ("d", "H", *map(_type_of, names)):
                column: array[float] = array(code)
                column.frombytes(body[: count * column.itemsize])
                body = body[count * column.itemsize :]
                arrays.append(column)
        except (zlib.error, KeyError, TypeError) as error:
            raise ValueError(f"damaged metrics: {error}") from error
        at, weights, *columns = arrays
        if body or any(len(column) != count for column in arrays):
            raise ValueError("damaged metrics: a column is too short")
        return cls(float(fields["resolution_s"]), at, dict(zip(names, columns, strict=True)), weights)  # type: ignore[arg-type]

    def _append(self, at: float, values: Mapping[str, float], weight: int) -> None:
        """As a new point, or as a part of the last one."""
        if self.at and self.at[-1] // self.resolution_s == at // self.resolution_s:
            self._merge_into_last(at, values, weight)
            return
        self.at.append(at)
        self._weights.append(weight)
        for name, column in self.columns.items():
            column.append(values.get(name, _NONE))
        self._add_columns(values)

    def _add_columns(self, values: Mapping[str, float]) -> None:
        for name in values:
            if name not in self.columns and len(self.columns) < MAX_COLUMNS:
                column: array[float] = array(_type_of(name), [_NONE]) * len(self)
                column[-1] = values[name]
                self.columns[name] = column

    def _merge_into_last(self, at: float, values: Mapping[str, float], weight: int) -> None:
        have = self._weights[-1]
        share = weight / (have + weight)
        self.at[-1] += (at - self.at[-1]) * share
        self._weights[-1] = min(_MAX_WEIGHT, have + weight)
        for name, column in self.columns.items():
            old, new = column[-1], values.get(name, _NONE)
            if math.isnan(old):
                column[-1] = new
            elif not math.isnan(new):
                column[-1] = max(old, new) if name == STEP else old + (new - old) * share
        self._add_columns(values)

    def _widen(self, resolution_s: float) -> None:
        at, weights, columns = self.at, self._weights, self.columns
        self.resolution_s, self.at, self._weights = resolution_s, array("d"), array("H")
        self.columns = {name: array(_type_of(name)) for name in columns}
        rows = zip(*columns.values(), strict=True) if columns else iter([()] * len(at))
        for one, weight, row in zip(at, weights, rows, strict=True):
            self._append(one, dict(zip(columns, row, strict=True)), weight)


def merged(series: MetricSeries | None, points: Iterable[tuple[float, Mapping[str, float]]]) -> MetricSeries:
    """`series`, which is changed, or a new one, with these points added."""
    series = MetricSeries() if series is None else series
    for at, values in points:
        series.add(at, values)
    return series


def _type_of(name: str) -> str:
    """Steps and what programs report need more digits than a machine's use."""
    return "f" if name in MACHINE else "d"
