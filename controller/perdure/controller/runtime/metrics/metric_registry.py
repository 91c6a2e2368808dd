"""Counters, gauges and histograms, and their text formats: Prometheus 0.0.4 and OpenMetrics 1.0.

Safe to use from any thread. A metric has a limited number of label sets: values beyond it are counted under `OTHER`, so
that no label, whatever it holds, makes a scrape grow without bound. Labels are kept as text, so that a scrape of a
thousand lines takes about a millisecond.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

OTHER = "other"
MAX_SERIES = 200
_MAX_VALUE_CHARS = 100

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Labels = tuple[str, ...]


class Metric:
    """What all kinds share: a name, a sentence of help, and label sets. Values are kept by the subclasses."""

    kind = ""

    def __init__(self, name: str, help_text: str, labels: Labels, registry: MetricRegistry, max_series: int) -> None:
        self.name = name
        self.help_text = help_text
        self.labels = labels
        self._registry = registry
        self._lock = registry.lock
        self._max_series = max_series
        self._texts: dict[Labels, str] = {}  # label set → as it is written, without braces

    def _admit(self, values: Labels) -> Labels:
        """The label set to count under: `values`, or `OTHER` for each label. The caller holds the lock."""
        if values in self._texts:
            return values
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {values}")
        if len(self._texts) >= self._max_series:
            self._registry.dropped += 1
            values = (OTHER,) * len(self.labels)
        pairs = (f'{name}="{_escaped(value)}"' for name, value in zip(self.labels, values, strict=True))
        self._texts[values] = ",".join(pairs)
        return values

    def lines(self, *, openmetrics: bool) -> Iterator[str]:
        """The lines of a scrape. The caller holds the lock."""
        name = self.name if openmetrics or self.kind != "counter" else f"{self.name}_total"
        yield f"# HELP {name} {self.help_text}"
        yield f"# TYPE {name} {self.kind}"
        yield from self._samples()

    def _samples(self) -> Iterator[str]:
        raise NotImplementedError


class Counter(Metric):
    """A sum that only grows. Its samples are named `<name>_total`."""

    kind = "counter"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._values: dict[Labels, float] = {} if self.labels else {self._admit(()): 0}

    def inc(self, *values: str, by: float = 1) -> None:
        with self._lock:
            values = self._admit(values)
            self._values[values] = self._values.get(values, 0) + by

    def _samples(self) -> Iterator[str]:
        for values, value in self._values.items():
            yield f"{self.name}_total{_braced(self._texts[values])} {_number(value)}"


class Gauge(Metric):
    """A value that goes up and down. A label set whose value is 0 is forgotten, unless it is the only one."""

    kind = "gauge"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._values: dict[Labels, float] = {} if self.labels else {self._admit(()): 0}

    def set(self, value: float, *values: str) -> None:
        with self._lock:
            self._values[self._admit(values)] = value

    def add(self, by: float, *values: str) -> None:
        """What was added under `OTHER` is subtracted there."""
        with self._lock:
            other = (OTHER,) * len(self.labels)
            is_under_other = by < 0 and values not in self._texts and other in self._texts
            values = other if is_under_other else self._admit(values)
            self._values[values] = self._values.get(values, 0) + by
            if self.labels and not self._values[values]:
                del self._values[values], self._texts[values]

    def replace(self, values: dict[Labels, float]) -> None:
        """Set these label sets, and forget all others."""
        with self._lock:
            self._values.clear()
            self._texts.clear()
            for labels, value in values.items():
                admitted = self._admit(labels)
                self._values[admitted] = self._values.get(admitted, 0) + value

    def _samples(self) -> Iterator[str]:
        for values, value in self._values.items():
            yield f"{self.name}{_braced(self._texts[values])} {_number(value)}"


class Histogram(Metric):
    """Observations, counted by upper bounds."""

    kind = "histogram"

    def __init__(self, *args: object, buckets: Sequence[float]) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._bounds = tuple(map(float, buckets))
        self._les = [*map(repr, self._bounds), "+Inf"]
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}
        if not self.labels:
            self._start(self._admit(()))

    def _start(self, values: Labels) -> list[int]:
        self._sums[values] = 0.0
        return self._counts.setdefault(values, [0] * len(self._les))

    def observe(self, value: float, *values: str) -> None:
        """Count `value`; one that is not finite is ignored, because it would void the sum."""
        if not math.isfinite(value):
            return
        with self._lock:
            values = self._admit(values)
            counts = self._counts.get(values) or self._start(values)
            counts[bisect_left(self._bounds, value)] += 1
            self._sums[values] += value

    def _samples(self) -> Iterator[str]:
        for values, counts in self._counts.items():
            text, total = self._texts[values], 0
            prefix = f"{text}," if text else ""
            for le, count in zip(self._les, counts, strict=True):
                total += count
                yield f'{self.name}_bucket{{{prefix}le="{le}"}} {total}'
            yield f"{self.name}_count{_braced(text)} {total}"
            yield f"{self.name}_sum{_braced(text)} {_number(self._sums[values])}"


Kind = TypeVar("Kind", bound=Metric)


class MetricRegistry:
    """All metrics of a process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        #: How often a value was counted under `OTHER` because its metric had too many label sets.
        self.dropped = 0
        self._metrics: dict[str, Metric] = {}
        self._collectors: list[Callable[[], None]] = []

    @property
    def metrics(self) -> list[Metric]:
        return list(self._metrics.values())

    def counter(self, name: str, help_text: str, *labels: str, max_series: int = MAX_SERIES) -> Counter:
        """A counter; `name` has no `_total`."""
        return self._add(Counter(name, help_text, labels, self, max_series))

    def gauge(self, name: str, help_text: str, *labels: str, max_series: int = MAX_SERIES) -> Gauge:
        return self._add(Gauge(name, help_text, labels, self, max_series))

    def histogram(self, name: str, help_text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        """`buckets`: the upper bounds in ascending order, without infinity."""
        return self._add(Histogram(name, help_text, labels, self, MAX_SERIES, buckets=buckets))

    def _add(self, metric: Kind) -> Kind:
        if metric.name in self._metrics:
            raise ValueError(f"there are two metrics {metric.name}")
        self._metrics[metric.name] = metric
        return metric

    def on_scrape(self, collect: Callable[[], None]) -> None:
        """Have `collect` called before each scrape, to set gauges. It must be cheap: no scan, no database."""
        self._collectors.append(collect)

    def render(self, *, openmetrics: bool = False) -> str:
        """The text of a scrape."""
        for collect in self._collectors:
            collect()
        lines: list[str] = []
        with self.lock:
            for metric in self._metrics.values():
                lines += metric.lines(openmetrics=openmetrics)
        if openmetrics:
            lines.append("# EOF")
        return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    printable = "".join(c if c.isprintable() else " " for c in value[:_MAX_VALUE_CHARS])
    return printable.replace("\\", r"\\").replace('"', r"\"")


def _braced(text: str) -> str:
    return f"{{{text}}}" if text else ""


def _number(value: float) -> str:
    return repr(value) if isinstance(value, int) else repr(float(value))
