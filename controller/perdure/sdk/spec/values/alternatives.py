"""The alternatives of `any_of` and `ordered`: how many there may be, and which of them are equal."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from perdure.sdk.spec.problem_list import Report
from perdure.sdk.spec.problems import FieldPath

MAX_ALTERNATIVES = 200
# Each alternative repeats what is written beside the list: without a limit, a small text becomes gigabytes.
_MAX_REPEATED_CHARS = 4 * 10**6


def check_repetition(base: dict[str, Any], options: Sequence[object], path: FieldPath, report: Report) -> bool:
    """Whether `base` is small enough to be repeated in each of `options`, which are at `path`. Reports it if not."""
    chars = len(repr(base)) * len(options)
    if chars <= _MAX_REPEATED_CHARS:
        return True
    message = f"{len(options)} alternatives repeat the fields beside them, {chars / 1e6:,.0f} MB in all"
    report.add_problem(path, message, "give fewer alternatives, or shorter fields")
    return False


def distinct(configs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """`configs` without repetitions, in order. They hold values of JSON."""
    unique: dict[Hashable, dict[str, Any]] = {}
    for config in configs:
        unique.setdefault(_hashable(config), config)
    return list(unique.values())


def _hashable(value: Any) -> Hashable:
    if isinstance(value, dict):
        return frozenset((key, _hashable(item)) for key, item in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value
