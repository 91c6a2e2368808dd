"""Durations and moments of `job_recovery`, its limits, and the fields that require each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from perdure.sdk.spec.problem_list import Report
from perdure.sdk.spec.problems import FieldPath, InvalidValue, describe
from perdure.sdk.spec.validators import Field, Number, Parsed

DURATION = "a duration such as 48h, 90m, 2d or 1h30m"
DEADLINE = f"{DURATION}, counted from the launch, or a moment such as 2026-12-01T08:00Z"

_SECONDS = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([wdhms])")


def parse_duration(value: Any) -> str:
    """The duration in lower case without spaces. Raises InvalidValue."""
    written = str(value).lower().replace(" ", "")
    if not re.fullmatch(rf"(?:{_PART.pattern})+", written) or seconds(written) <= 0:
        raise InvalidValue(f"found {describe(value)}")
    return written


def parse_deadline(value: Any) -> str:
    """The duration as `parse_duration` returns it, or the moment in UTC as ISO 8601. Raises InvalidValue."""
    if isinstance(value, datetime):
        moment = value
    else:
        try:
            moment = datetime.fromisoformat(str(value).strip())
        except ValueError:
            return parse_duration(value)
    if moment.tzinfo is None:
        raise InvalidValue(
            f"{describe(value)} names no time zone", "end it in Z for UTC, or in an offset such as +01:00"
        )
    try:
        return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except OverflowError as error:
        raise InvalidValue(f"{describe(value)} is outside of the years 1 to 9999 in UTC") from error


def seconds(duration: str) -> float:
    """The length of a duration that `parse_duration` returned."""
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(duration))


def moment(deadline: str, *, launched_at: float) -> float:
    """The epoch seconds of a deadline that `parse_deadline` returned."""
    if "T" in deadline:
        return datetime.fromisoformat(deadline).timestamp()
    return launched_at + seconds(deadline)


def check(recovery: Mapping[str, Any], path: FieldPath, report: Report) -> None:
    """Report a deadline that is missing, or that the strategy ignores."""
    strategy = recovery.get("strategy")
    if strategy == "DEADLINE":
        if "deadline" not in recovery:
            report.add_problem(path, "DEADLINE needs a deadline", "add, for example, `deadline: 60h`")
    elif "deadline" in recovery:
        fix = "write `strategy: DEADLINE`, or remove the deadline"
        report.add_problem((*path, "deadline"), f"{strategy} does not use a deadline", fix)


ON_TIME = Field(
    Number(low=0.5, high=1, whole=False),
    "The share of such tasks that must meet their deadline: 0.99 lets one in a hundred be late, which saves cost. "
    "Default: 1, always.",
    acted_on="strategy DEADLINE",
)

_DURATION = Parsed(parse_duration, DURATION, (str,))
LIMIT_FIELDS = {
    "keep_on_failure": Field(_DURATION, "How long machines are kept, and paid for, after a failure. Default: none."),
    "stuck_after": Field(
        _DURATION,
        "How long the task may make no progress, in saved steps or on its GPUs, before you are told. Must be longer "
        "than the time between two saves. Default: `restart_when_stuck`.",
    ),
    "restart_when_stuck": Field(
        _DURATION,
        "How long the task may make no progress before it is restarted from its last checkpoint. Default: never.",
    ),
    "max_duration": Field(
        _DURATION,
        "How long after the first start of `run` the task is ended, with time to save. The time counts during "
        "recoveries, too. Default: never.",
    ),
    "max_cost": Field(
        Number(positive=True, whole=False),
        "Cost of the task's machines in USD at which it is ended, with time to save. You are told at 80 %. Default: "
        "no limit.",
    ),
}
"""Fields of `job_recovery` that limit the task, or what it costs after a failure."""
