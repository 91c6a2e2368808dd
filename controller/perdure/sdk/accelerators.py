"""The ways to write accelerators: `A100`, `A100:8`, `{A100: 8}`, a list (in order), several keys (any of them).

`read` brings them all to one of three forms: `{"A100": 8}` for one, `{"A100:8": None, "H100:8": None}` for any of
several, `["A100:8", "H100:8"]` for several in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from perdure.sdk.problems import Refused, shown
from perdure.sdk.quantities import plain

Accelerators = dict[str, int | float | None] | list[str]
Choice = tuple[str, float]

# Catalogs spell these so; `a100` is brought to `A100`. Names that are not here stay as they are written.
_SPELLINGS = (
    *(
        "A10",
        "A10G",
        "A100",
        "A100-80GB",
        "A4000",
        "A5000",
        "A6000",
        "B200",
        "B300",
        "GB200",
        "GH200",
        "H100",
        "H100-MEGA",
    ),
    *(
        "H200",
        "Inferentia",
        "Inferentia2",
        "K80",
        "L4",
        "L40",
        "L40S",
        "M60",
        "MI250",
        "MI300X",
        "P100",
        "P4",
        "RTX3090",
    ),
    *("RTX4090", "RTX5090", "RTX6000", "RTX6000-Ada", "T4", "T4g", "Trainium", "Trainium2", "V100", "V100-32GB"),
)
_SPELLING = {name.lower(): name for name in _SPELLINGS}
_ONE = r"([A-Za-z0-9][A-Za-z0-9._/-]*)(?:\s*:\s*([0-9.]+))?"


def read(value: object) -> Accelerators | None:
    """The canonical form, None if none are asked for. `Refused` says which entry is wrong."""
    if isinstance(value, str):
        return _any_of([_one(item) for item in _words(value)])
    if isinstance(value, list):
        listed = dict.fromkeys(_listed(item) for item in value)
        return _any_of(listed) if len(listed) <= 1 else [_text(choice) for choice in listed]
    assert isinstance(value, dict)
    return _any_of([_entry(name, count) for name, count in value.items()])


def choices(canonical: Accelerators | None) -> tuple[Choice, ...]:
    """The alternatives, in the order given; () if none are asked for."""
    if isinstance(canonical, dict):
        return tuple(_entry(name, count) for name, count in canonical.items())
    return tuple(_one(item) for item in canonical or ())


def in_order(canonical: Accelerators | None) -> bool:
    """Whether an earlier alternative is to be tried before a later one, whatever the prices."""
    return isinstance(canonical, list)


def _words(text: str) -> list[str]:
    # `accelerators:` with entries `A100:1` on lines of their own is, to YAML, one text with spaces in it.
    return re.sub(r"\s*:\s*", ":", text.strip()).replace(",", " ").split() or [text]


def _listed(item: object) -> Choice:
    if isinstance(item, dict) and len(item) == 1:
        return _entry(*next(iter(item.items())))
    return _one(item)


def _entry(name: object, count: object) -> Choice:
    if count is None:
        return _one(name)
    known, given = _one(name)
    if given != 1 or ":" in str(name):
        raise Refused(f"{shown(name)} is given the count {count} besides its own", "give one count")
    return _one(f"{known}:{count}" if not isinstance(count, bool) else None)


def _one(item: object) -> Choice:
    match = re.fullmatch(_ONE, item.strip()) if isinstance(item, str) else None
    if not match:
        raise Refused(f"{shown(item)} names no accelerator")
    try:
        count = float(match[2] or 1)
    except ValueError:
        count = 0.0
    if count <= 0:
        raise Refused(f"{shown(item)} has no count above 0")
    return _SPELLING.get(match[1].lower(), match[1]), plain(count)


def _text(choice: Choice) -> str:
    return f"{choice[0]}:{choice[1]}"


def _any_of(found: Iterable[Choice]) -> Accelerators | None:
    unique = list(dict.fromkeys(found))
    if len(unique) > 1:
        return {_text(choice): None for choice in unique}
    one: dict[str, int | float | None] = dict(unique)
    return one or None
