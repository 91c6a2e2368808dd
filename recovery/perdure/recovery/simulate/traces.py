"""Recorded spot availability of zones, as published: JSON with `metadata.gap_seconds` and one value per tick.

Two families of data sets use the same format with opposite meanings: in one, a value is the number of available
machines; in the other, 1 means that none is available. A file does not say which, so the caller must.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import accumulate
from typing import Any


class BadTrace(ValueError):
    """A file is no trace, or contradicts the arguments. The message says what, where and what to do."""


@dataclass(frozen=True)
class ZoneTrace:
    """One zone's spot market over time, in ticks of `gap_s` seconds. Tick i begins at `start_at + i * gap_s`."""

    zone: str
    region: str
    instance_type: str
    start_at: float  # epoch seconds
    gap_s: int
    counts: tuple[int, ...]  # by tick: available machines, those in use included
    prices: tuple[float, ...]  # by tick: USD per hour and machine
    on_demand_price: float

    @property
    def end_at(self) -> float:
        return self.start_at + len(self.counts) * self.gap_s

    def tick(self, at: float) -> int:
        """The index of the tick that `at` lies in; the first or last one outside the trace."""
        return min(max(int((at - self.start_at) // self.gap_s), 0), len(self.counts) - 1)

    def time(self, tick: int) -> float:
        return self.start_at + tick * self.gap_s

    def price(self, at: float) -> float:
        return self.prices[self.tick(at)]

    def has_capacity(self, num_nodes: int, at: float) -> bool:
        return self.counts[self.tick(at)] >= num_nodes

    def next_change(self, num_nodes: int, after: float) -> float:
        """When `has_capacity(num_nodes, …)` next differs from its value at `after`; infinity if never."""
        changes = self._changes(num_nodes)
        following = bisect_right(changes, self.tick(after))
        return self.time(changes[following]) if following < len(changes) else float("inf")

    def spent(self, at: float) -> float:
        """USD that a machine would have cost from the start of the trace to `at`, billed by the second."""
        tick = self.tick(at)
        return (self._spent[tick] + self.prices[tick] * (at - self.time(tick))) / 3600

    def slice(self, begin: float, end: float) -> ZoneTrace:
        """The ticks from `begin` to `end`, as fractions of the trace: (0, 0.5) is the first half."""
        first, last = round(begin * len(self.counts)), round(end * len(self.counts))
        counts, prices = self.counts[first:last], self.prices[first:last]
        return replace(self, start_at=self.time(first), counts=counts, prices=prices)

    @cached_property
    def _spent(self) -> list[float]:
        return [0.0, *accumulate(price * self.gap_s for price in self.prices)]

    @cached_property
    def _changes_by_count(self) -> dict[int, list[int]]:
        return {}

    def _changes(self, num_nodes: int) -> list[int]:
        known = self._changes_by_count.get(num_nodes)
        if known is None:
            up = [count >= num_nodes for count in self.counts]
            known = [i for i in range(1, len(up)) if up[i] != up[i - 1]]
            self._changes_by_count[num_nodes] = known
        return known


def parse(
    text: str,
    *,
    name: str,
    unavailable_is: int,
    spot_price: float | None = None,
    on_demand_price: float | None = None,
) -> ZoneTrace:
    """The trace in `text`, a JSON document from a file called `name`, such as `us-east-1a.json`.

    `unavailable_is`: 1 if the value 1 means that no machine is available (then only 0 and 1 occur); 0 if a value is the
    number of available machines. The given prices override the file's. Raises `BadTrace`.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise BadTrace(f"{name} is not JSON: {error}") from None
    match document:
        case {"metadata": {"gap_seconds": int(gap_s)} as metadata, "data": [_, *_] as data} if gap_s > 0:
            pass
        case _:
            raise BadTrace(
                f"{name} is no trace: it needs metadata.gap_seconds (seconds per tick) and a list named data"
            )
    info = metadata.get("price_info")
    info = info if isinstance(info, dict) else {}
    zone, _, kind = _stem(name).partition("_")
    on_demand = _on_demand_price(on_demand_price, info, name)
    return ZoneTrace(
        zone=zone,
        region=region_of(zone),
        instance_type=str(info.get("instance_type") or kind or "machine"),
        start_at=_start(metadata, name),
        gap_s=gap_s,
        counts=_counts(data, name, unavailable_is),
        prices=_prices(document, info, name, spot_price, len(data)),
        on_demand_price=on_demand,
    )


def region_of(zone: str) -> str:
    """The region in a zone's name: `us-east-1` in AWS's `us-east-1a`, `us-east1` in Google's `us-east1-b`."""
    match = re.fullmatch(r"(.*\d)-?[a-z]", zone)
    return match[1] if match else zone


def common_span(zones: Sequence[ZoneTrace]) -> tuple[float, float]:
    """The time during which all of `zones` were recorded (epoch seconds). Raises `BadTrace` if there is none."""
    begin, end = max(z.start_at for z in zones), min(z.end_at for z in zones)
    if begin >= end:
        raise BadTrace(
            f"the traces of {', '.join(z.zone for z in zones)} do not overlap in time: simulate them separately"
        )
    return begin, end


def _stem(name: str) -> str:
    """What names the zone: the file, or the folder of a file that is only called `full` or by a number."""
    folder, _, file = name.replace("\\", "/").rpartition("/")
    stem = file.removesuffix(".gz").removesuffix(".json")
    parent = folder.rpartition("/")[2]
    return parent if parent and (stem == "full" or stem.isdigit()) else stem


def _start(metadata: dict[str, Any], name: str) -> float:
    text = metadata.get("start_time")
    if text is None:
        return 0.0
    if type(text) in (int, float) and 0 <= text < float("inf"):
        return float(text)  # seconds after a moment that the data set does not name
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        raise BadTrace(f"{name}: metadata.start_time is {text!r}, neither an ISO 8601 time nor seconds") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _counts(data: list[Any], name: str, unavailable_is: int) -> tuple[int, ...]:
    odd = next((i for i, v in enumerate(data) if type(v) is not int or v < 0), None)
    if odd is not None:
        raise BadTrace(f"{name}: data[{odd}] is {data[odd]!r}, not a whole number of 0 or more")
    if unavailable_is == 0:
        return tuple(data)
    large = next((i for i, v in enumerate(data) if v > 1), None)
    if large is not None:
        raise BadTrace(
            f"{name}: data[{large}] is {data[large]}: these are numbers of machines, so a 0 means unavailable"
        )
    return tuple(1 - v for v in data)


def _prices(
    document: dict[str, Any], info: dict[str, Any], name: str, given: float | None, ticks: int
) -> tuple[float, ...]:
    prices = document.get("prices")
    if given is not None:
        return (given,) * ticks
    if prices is None:
        price = info.get("price")
        if price is None:
            raise BadTrace(f"{name} has no prices: specify the spot price per hour")
        return (float(price),) * ticks
    if not isinstance(prices, list) or len(prices) != ticks:
        count = len(prices) if isinstance(prices, list) else "no list of"
        raise BadTrace(f"{name}: {count} prices for {ticks} ticks of data")
    odd = next((i for i, p in enumerate(prices) if not isinstance(p, int | float) or not 0 < p < float("inf")), None)
    if odd is not None:
        raise BadTrace(f"{name}: prices[{odd}] is {prices[odd]!r}, not a price per hour")
    return tuple(float(p) for p in prices)


def _on_demand_price(given: float | None, info: dict[str, Any], name: str) -> float:
    price = given if given is not None else info.get("on_demand_price")
    if price is None:
        raise BadTrace(f"{name} has no on-demand price: specify the on-demand price per hour")
    return float(price)
