"""`resources.autostop` in the forms of SkyPilot: a flag, minutes, a duration, or a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_IDLE_MINUTES = 5.0
_MINUTES = {"": 1, "s": 1 / 60, "m": 1, "h": 60, "d": 24 * 60, "w": 7 * 24 * 60}


@dataclass(frozen=True)
class AutostopRequest:
    """When a cluster stops by itself. `idle_s`: after being idle for so long; None: never."""

    idle_s: float | None
    down: bool = False
    wait_for: str | None = None  # None: the default
    below: float | None = None  # a share of 1; None: no floor


def parse_autostop(value: object) -> AutostopRequest | None:
    """What a valid value requests; None if it is not given.

    `true` is SkyPilot's default of five minutes; negative minutes turn autostop off.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        minutes = value.get("idle_minutes")
        idle_s = _idle_s(DEFAULT_IDLE_MINUTES if minutes is None else minutes)
        percent = value.get("idle_below")
        below = None if percent is None else float(percent) / 100
        return AutostopRequest(idle_s, bool(value.get("down", False)), value.get("wait_for"), below)
    return AutostopRequest(_idle_s(value))


def _idle_s(value: object) -> float | None:
    match value:
        case bool():
            minutes = DEFAULT_IDLE_MINUTES if value else -1.0
        case int() | float():
            minutes = float(value)
        case _:
            text = str(value).strip().lower()
            number = text.rstrip("smhdw")
            minutes = float(number) * _MINUTES[text[len(number) :]]
    return None if minutes < 0 else 60.0 * minutes
