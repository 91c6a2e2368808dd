"""Times, durations, money and places as text."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

STATUS_COLORS = {
    "PENDING": "blue",
    "STARTING": "cyan",
    "RUNNING": "green",
    "RECOVERING": "yellow",
    "CANCELLING": "yellow",
    "SUCCEEDED": "green",
    "CANCELLED": "white",
}


@lru_cache(maxsize=256)
def colored_status(text: str) -> str:
    """A status in its color. (`click.echo` strips colors where they are not wanted.)"""
    from click import style

    word = text.strip().split(" ")[0]
    return style(text, fg=STATUS_COLORS.get(word, "red" if word.startswith("FAILED") else None))


def printable(value: Any) -> Any:
    """A JSON value with the control characters of its strings escaped, as in `\\x1b[2J`. Line breaks are kept.

    Names, users and messages come from other users and from nodes: on a terminal they must only ever be text.
    """
    if isinstance(value, str):
        return value if value.isprintable() else "".join(map(_printable_character, value))
    if isinstance(value, dict):
        return {printable(name): printable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable(item) for item in value]
    return value


def one_line(text: str) -> str:
    """`text` without line breaks, so that it cannot add a line to a table."""
    return " ".join(text.splitlines()) if "\n" in text else text


def _printable_character(character: str) -> str:
    if character.isprintable() or character == "\n":
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode()


def to_epoch(iso: str) -> float:
    """An API time in epoch seconds."""
    return datetime.fromisoformat(iso).timestamp()


def local_time(iso: str, *, with_zone: bool = False) -> str:
    """An API time in this machine's time zone: `2026-11-21 01:02:03`, or `2026-11-21 01:02:03 CET`."""
    return (
        datetime.fromisoformat(iso).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z" if with_zone else "%Y-%m-%d %H:%M:%S")
    )


def time_zone(now: float) -> str:
    """The name of this machine's time zone, such as `CET`."""
    return datetime.fromtimestamp(now).astimezone().strftime("%Z")


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
    """`12m ago`: only the larger unit of the duration; `-` for none."""
    return "-" if iso is None else f"{duration(now - to_epoch(iso)).split(' ')[0]} ago"


def money(usd: float) -> str:
    """Dollars with two decimals, or four below 10 cents."""
    if usd == 0 or usd >= 0.1:
        return f"${usd:,.2f}"
    if 0 < usd < 0.0001:
        return "<$0.0001"
    return f"${usd:.4f}"


def saving(cost_usd: float, on_demand_usd: float) -> str | None:
    """The share of the on-demand price that was saved, such as `71%`; None if nothing was."""
    if on_demand_usd <= 0 or cost_usd >= on_demand_usd:
        return None
    return f"{1 - cost_usd / on_demand_usd:.0%}"


def cost(cost_usd: float, on_demand_usd: float) -> str:
    """`$0.42 (71%)`: the cost and the saving; `-` for no cost."""
    if cost_usd <= 0:
        return "-"
    share = saving(cost_usd, on_demand_usd)
    return f"{money(cost_usd)} ({share})" if share else money(cost_usd)


def where(place: Mapping[str, Any]) -> str:
    """The place of a job, an attempt or an offer: `aws/us-east-1a spot`; `-` for none."""
    if not place.get("cloud"):
        return "-"
    area = place.get("zone") or place.get("region")
    named = f"{place['cloud']}/{area}" if area else str(place["cloud"])
    return f"{named} {place['market']}" if place.get("market") else named
