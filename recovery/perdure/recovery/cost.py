"""What machines cost: per second of life, at the price of the offer they were bought at."""

from __future__ import annotations

_SECONDS_PER_HOUR = 3600.0


def cost(price_per_hour: float, start: float, end: float) -> float:
    """USD for one machine from `start` to `end` (epoch seconds); 0 when it ends before it starts."""
    return price_per_hour * max(0.0, end - start) / _SECONDS_PER_HOUR


def saving(paid: float, on_demand: float) -> float | None:
    """The share of the on-demand price (or cost) that is not paid, 0.7 for 70 %; None where on-demand is free.

    Negative when more was paid than on-demand would have cost, as when work had to be repeated.
    """
    return 1 - paid / on_demand if on_demand > 0 else None
