"""The program's newest report of its step and of numbers such as the loss (see `perdure.checkpoint.progress`).

The workload may write anything into the file, so nothing in it may stop the agent, or end its connection.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from perdure.agent.storage.checkpoint_journal import read_from

MAX_VALUES = 8
_END_OF_STEPS = 1 << 63
_MAX_DIGITS = 20
_MAX_VALUE = 1e30  # far from the largest float, so that sums stay finite
_MAX_BYTES = 64 * 1024
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_./-]{0,39}")


class ProgressFile:
    """Reads each report once. One thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = b""

    def take_new(self) -> dict[str, Any]:
        """The fields `step` and `values` of the frame `usage`; none of them if there is no new, valid report."""
        data = read_from(self._path, 0)
        if data == self._last or len(data) > _MAX_BYTES:
            return {}
        self._last = data
        return parse_report(data)


def parse_report(data: bytes) -> dict[str, Any]:
    """The fields of a report that the controller accepts; none if it has no valid step."""
    try:
        report = json.loads(data, parse_int=_integer)
    except (ValueError, RecursionError, MemoryError):
        return {}
    step = report.get("step") if isinstance(report, dict) else None
    if type(step) is not int or not 0 <= step < _END_OF_STEPS:
        return {}
    values = report.get("values")
    numbers = {
        name: float(value)
        for name, value in (values.items() if isinstance(values, dict) else ())
        if _NAME.fullmatch(name) and type(value) in (int, float) and -_MAX_VALUE <= value <= _MAX_VALUE
    }
    return {"step": step, "values": dict(list(numbers.items())[:MAX_VALUES])}


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:  # some Python versions take hours for a million digits
        raise ValueError("the number is too long")
    return int(digits)
