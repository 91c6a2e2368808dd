"""Numbers with units: `4+`, `64GB`, `10m`. Sizes are binary, as in SkyPilot: 1GB here is 1 GiB."""

from __future__ import annotations

import math
import re

from perdure.sdk.spec.problems import InvalidValue, describe

_MAX_CHARS = 100
_NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)"
_AMOUNT = rf"\s*{_NUMBER}\s*(\+?)\s*"
_SIZE = rf"(?i)\s*{_NUMBER}\s*([kmgtp]?)(i?b?)\s*(\+?)\s*"
_DURATION = r"(?i)\s*([0-9]+)\s*([smhdw]?)\s*"
_RCLONE_SIZE = r"(?i)off|[0-9]+(?:\.[0-9]*)?(?:b|[kmgtpe](?:ib?)?)?"
_RCLONE_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_RCLONE_DURATION = rf"off|{_RCLONE_NUMBER}[dwMy]?|(?:{_RCLONE_NUMBER}(?:h|m|s|ms|us|ns))+"
_GIB = {"k": 2.0**-20, "m": 2.0**-10, "": 1.0, "g": 1.0, "t": 2.0**10, "p": 2.0**20}


def cpus(value: object) -> str:
    """vCPUs as `4` (exactly) or `4+` (at least)."""
    match = re.fullmatch(_AMOUNT, _text(value))
    return _amount(value, float(match[1]) if match else 0.0, at_least=bool(match and match[2]))


def memory(value: object) -> str:
    """Memory in GiB as `32` (exactly) or `32+` (at least)."""
    match = re.fullmatch(_SIZE, _text(value))
    number = float(match[1]) * _GIB[match[2].lower()] if match else 0.0
    return _amount(value, number, at_least=bool(match and match[4]))


def disk_gib(value: object) -> int:
    """A disk's size in whole GiB, rounded up."""
    match = re.fullmatch(_SIZE, _text(value))
    size = float(match[1]) * _GIB[match[2].lower()] if match and not match[4] else 0.0
    if not 0 < size < math.inf:
        raise InvalidValue(f"found {describe(value)}")
    return math.ceil(size)


def minutes(value: object) -> object:
    """A duration in SkyPilot's form, unchanged: minutes, or text with a unit (`10m`, `2h`, `1d`, `1w`)."""
    if not re.fullmatch(_DURATION, _text(value)):
        raise InvalidValue(f"found {describe(value)}")
    return value


def rclone_size(value: object) -> object:
    """A size in rclone's form, unchanged: `64M`, `1.5Gi`, `off`. A number without a unit counts KiB."""
    if not re.fullmatch(_RCLONE_SIZE, _text(value)):
        raise InvalidValue(f"found {describe(value)}")
    return value


def rclone_duration(value: object) -> object:
    """A duration in rclone's form, unchanged: `1h30m`, `100ms`, `2d`, `off`. A number without a unit counts seconds."""
    if not re.fullmatch(_RCLONE_DURATION, _text(value)):
        raise InvalidValue(f"found {describe(value)}")
    return value


def plain(number: float) -> int | float:
    """`8.0` → `8`."""
    return int(number) if float(number).is_integer() else float(number)


def _amount(value: object, number: float, *, at_least: bool) -> str:
    if not 0 < number < math.inf:
        raise InvalidValue(f"found {describe(value)}")
    return f"{plain(number)}{'+' if at_least else ''}"


def _text(value: object) -> str:
    """The text of a number; "" if it is none. A long one is none: the patterns take cubic time for runs of spaces."""
    text = "" if isinstance(value, bool) else str(value)
    return text if len(text) <= _MAX_CHARS else ""


def port(value: object) -> str:
    """A port, or a range such as `8080-8090`, as text."""
    first, dash, last = str(value).partition("-")
    ends = [int(end) if re.fullmatch("[0-9]{1,5}", end) else 0 for end in ((first, last) if dash else (first,))]
    if not all(1 <= end <= 65535 for end in ends) or ends != sorted(ends):
        raise InvalidValue(f"found {describe(value)}")
    return str(value)
