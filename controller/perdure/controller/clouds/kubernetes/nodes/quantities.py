"""Quantities of resources, such as `500m` and `4Gi`."""

from __future__ import annotations

import re

_UNITS = {
    **{"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15},
    **{"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50},
}
_QUANTITY = re.compile(r"(?P<number>[+-]?[0-9.]+(?:[eE][+-]?\d+)?)(?P<unit>[A-Za-z]*)")


def parse_quantity(text: object) -> float:
    """The number that a quantity stands for; 0 for one that is not valid."""
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None or match["unit"] not in _UNITS:
        return 0.0
    try:
        return float(match["number"]) * _UNITS[match["unit"]]
    except ValueError:
        return 0.0
