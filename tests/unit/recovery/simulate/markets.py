"""Small markets, written by hand."""

from __future__ import annotations

from collections.abc import Callable

from perdure.recovery.simulate import ZoneTrace
from perdure.recovery.simulate.traces import region_of

GAP_S = 600

MakeZone = Callable[..., ZoneTrace]  # with the parameters of `make_zone`


def make_zone(
    pattern: str, *, name: str = "east-1a", price: float | tuple[float, ...] = 1.0, on_demand: float = 3.0
) -> ZoneTrace:
    """`make_zone("110")`: a tick per digit, 600 s each; the digit is the number of available machines."""
    prices = price if isinstance(price, tuple) else (price,) * len(pattern)
    return ZoneTrace(name, region_of(name), "m", 0.0, GAP_S, tuple(map(int, pattern)), prices, on_demand)
