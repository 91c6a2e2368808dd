"""How times, durations, money and places are written for people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

STATUS_COLOURS = {
    "PENDING": "blue",
    "STARTING": "cyan",
    "RUNNING": "green",
    "RECOVERING": "yellow",
    "CANCELLING": "yellow",
    "SUCCEEDED": "green",
    "CANCELLED": "white",
}


@lru_cache(maxsize=256)
def painted_status(text: str) -> str:
    """A status in its colour. (`click.echo` takes colours away again where they are not wanted.)"""
    from click import style

    word = text.strip().split(" ")[0]
    return style(text, fg=STATUS_COLOURS.get(word, "red" if word.startswith("FAILED") else None))


def epoch(iso: str) -> float:
    """Epoch seconds of one of the API's times."""
    return datetime.fromisoformat(iso).timestamp()


def local_time(iso: str) -> str:
    """The API's time in this machine's zone: `2026-11-21 01:02:03`."""
    return datetime.fromisoformat(iso).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def duration(seconds: float | None) -> str:
    """`45s`, `3m 12s`, `2h 5m`, `3d 4h`; `-` for none."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    for size, unit, smaller_size, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size}{unit} {rest}{smaller}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


def ago(iso: str | None, now: float) -> str:
    """`12m ago`: the larger unit of the duration alone; `-` for none."""
    return "-" if iso is None else f"{duration(now - epoch(iso)).split(' ')[0]} ago"


def money(usd: float) -> str:
    """Dollars: two digits, more where two would say nothing."""
    if usd == 0 or usd >= 0.1:
        return f"${usd:,.2f}"
    if 0 < usd < 0.0001:
        return "<$0.0001"
    return f"${usd:.4f}"


def saved(cost_usd: float, on_demand_usd: float) -> str | None:
    """The share of the on-demand price that was not paid, as `71%`; None when there is nothing to compare."""
    if on_demand_usd <= 0 or cost_usd >= on_demand_usd:
        return None
    return f"{1 - cost_usd / on_demand_usd:.0%}"


def cost(cost_usd: float, on_demand_usd: float) -> str:
    """`$0.42 (71%)`; `-` while nothing was paid."""
    if cost_usd <= 0:
        return "-"
    share = saved(cost_usd, on_demand_usd)
    return f"{money(cost_usd)} ({share})" if share else money(cost_usd)


def where(place: Mapping[str, Any]) -> str:
    """Where a job, an attempt or an offer is: `aws/us-east-1a spot`; `-` if nowhere."""
    if not place.get("cloud"):
        return "-"
    area = place.get("zone") or place.get("region")
    named = f"{place['cloud']}/{area}" if area else str(place["cloud"])
    return f"{named} {place['market']}" if place.get("market") else named
