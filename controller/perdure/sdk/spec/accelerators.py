"""The forms of accelerators: `A100`, `A100:8`, `80GB+:8`, `{A100: 8}`, a list (in order), several keys (any of them).

`parse` converts them to one of three canonical forms: `{"A100": 8}` for one, `{"A100:8": None, "H100:8": None}` for any
of several, `["A100:8", "H100:8"]` for several in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from perdure.sdk.spec.problems import InvalidValue, describe
from perdure.sdk.spec.values.quantities import plain

# GB of memory of each GPU, from its vendor's data sheet. A name without the memory is the smallest model.
_NVIDIA_MEMORY = {
    **{"A10": 24, "A10G": 24, "A100": 40, "A100-80GB": 80, "A4000": 16, "A5000": 24, "A6000": 48, "B200": 180},
    **{"B300": 288, "GB200": 186, "GH200": 96, "H100": 80, "H100-MEGA": 80, "H200": 141, "K80": 12, "L4": 24},
    **{"L40": 48, "L40S": 48, "M60": 8, "P100": 16, "P4": 8, "RTX3090": 24, "RTX4090": 24, "RTX5090": 32},
    **{"RTX6000": 24, "RTX6000-Ada": 48, "T4": 16, "T4g": 16, "V100": 16, "V100-32GB": 32},
}
_AMD_MEMORY = {"MI250": 128, "MI300X": 192}
_GPU_MEMORY = {"nvidia": _NVIDIA_MEMORY, "amd": _AMD_MEMORY}

Accelerators = dict[str, int | float | None] | list[str]
Choice = tuple[str, float]

# The spelling of catalogs: `a100` becomes `A100`. Other names stay as they are written.
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
_ACCELERATOR = r"([A-Za-z0-9][A-Za-z0-9._/-]*)(?:\s*:\s*([0-9.]+))?"
# What people write around a count, which would be one more accelerator to choose from.
_NO_NAME = re.compile(r"(?i)[0-9]*x?|x[0-9]+")
# A GPU by its memory, as in `80GB+` and `nvidia:40GB`, and a count.
_MEMORY = r"(?i)(?:(nvidia|amd)\s*:\s*)?([0-9]+(?:\.[0-9]+)?)\s*(MB|GB|TB)(\+?)(?:\s*:\s*([0-9.]+))?"
_GB = {"MB": 1e-3, "GB": 1.0, "TB": 1e3}


def parse(value: object) -> Accelerators | None:
    """The canonical form; None if no accelerators are requested. Raises InvalidValue for the first wrong entry."""
    if isinstance(value, str):
        return _any_of([_parse_one(item) for item in _words(value)])
    if isinstance(value, list | dict) and not value:
        raise InvalidValue(f"found {describe(value)}, which names no accelerator", "remove it to request none")
    if isinstance(value, list):
        listed = dict.fromkeys(_parse_item(item) for item in value)
        return _any_of(listed) if len(listed) <= 1 else [_text(choice) for choice in listed]
    assert isinstance(value, dict)
    return _any_of([_parse_entry(name, count) for name, count in value.items()])


def choices(canonical: Accelerators | None) -> tuple[Choice, ...]:
    """The alternatives in the order given; () if no accelerators are requested."""
    if isinstance(canonical, dict):
        return tuple(_parse_entry(name, count) for name, count in canonical.items())
    return tuple(_parse_one(item) for item in canonical or ())


def with_memory(choice: Choice) -> tuple[Choice, ...]:
    """Every GPU of the catalog with the memory that `choice` names instead of a GPU; else `choice` itself."""
    match = re.fullmatch(_MEMORY, choice[0])
    if not match:
        return (choice,)
    memory, makers = float(match[2]) * _GB[match[3].upper()], [match[1].lower()] if match[1] else list(_GPU_MEMORY)
    known = {name: gb for maker in makers for name, gb in _GPU_MEMORY[maker].items()}
    return tuple((name, choice[1]) for name, gb in known.items() if gb == memory or (match[4] and gb > memory))


def is_ordered(canonical: Accelerators | None) -> bool:
    """Whether earlier alternatives are tried before later ones, regardless of prices."""
    return isinstance(canonical, list)


def _words(text: str) -> list[str]:
    # If the entries `A100:1` are on lines of their own, YAML joins them to one text with spaces.
    joined = ":".join(part.strip() for part in text.split(":"))
    return joined.replace(",", " ").split() or [text]


def _parse_item(item: object) -> Choice:
    if isinstance(item, dict) and len(item) == 1:
        return _parse_entry(*next(iter(item.items())))
    return _parse_one(item)


def _parse_entry(name: object, count: object) -> Choice:
    if count is None:
        return _parse_one(name)
    known, given = _parse_one(name)
    if given != 1 or str(name).count(":") > known.count(":"):
        raise InvalidValue(f"{describe(name)} is given the count {count} besides its own", "give one count")
    return _parse_one(f"{known}:{count}" if not isinstance(count, bool) else None)


def _parse_one(item: object) -> Choice:
    if isinstance(item, str) and (memory := re.fullmatch(_MEMORY, item.strip())):
        maker = f"{memory[1].lower()}:" if memory[1] else ""
        name, count = f"{maker}{plain(float(memory[2]))}{memory[3].upper()}{memory[4]}", _count(item, memory[5])
        if not with_memory((name, count)):
            raise InvalidValue(f"no known GPU has {name} of memory", "name the accelerator, such as A100:8")
        return name, count
    match = re.fullmatch(_ACCELERATOR, item.strip()) if isinstance(item, str) else None
    if not match:
        raise InvalidValue(f"{describe(item)} names no accelerator")
    if _NO_NAME.fullmatch(match[1]):  # as in `A100 x 8`
        raise InvalidValue(f"{describe(item)} names no accelerator", "write the count after a colon, as in A100:8")
    return _SPELLING.get(match[1].lower(), match[1]), _count(item, match[2])


def _count(item: object, text: str | None) -> int | float:
    try:
        count = float(text or 1)
    except ValueError:
        count = 0.0
    if count <= 0:
        raise InvalidValue(f"{describe(item)} has no count above 0")
    return plain(count)


def _text(choice: Choice) -> str:
    return f"{choice[0]}:{choice[1]}"


def _any_of(choices: Iterable[Choice]) -> Accelerators | None:
    unique = list(dict.fromkeys(choices))
    if len(unique) > 1:
        return {_text(choice): None for choice in unique}
    one: dict[str, int | float | None] = dict(unique)
    return one or None
