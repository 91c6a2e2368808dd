"""`deadline` and `work` of `job_recovery`: durations, moments, and what must be given together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from perdure.sdk.problems import Path, Refused, shown
from perdure.sdk.report import Report

DURATION = "a duration such as 48h, 90m, 2d or 1h30m"
DEADLINE = f"{DURATION}, counted from the launch, or a moment such as 2026-12-01T08:00Z"

_SECONDS = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
_PART = re.compile(r"(\d+(?:\.\d+)?)([wdhms])")


def read_duration(value: Any) -> str:
    """As written, in lower case without spaces. Raises Refused."""
    written = str(value).lower().replace(" ", "")
    if not re.fullmatch(rf"(?:{_PART.pattern})+", written) or seconds(written) <= 0:
        raise Refused(f"found {shown(value)}")
    return written


def read_deadline(value: Any) -> str:
    """A duration as written, or a moment in UTC. Raises Refused."""
    if isinstance(value, datetime):
        moment = value
    else:
        try:
            moment = datetime.fromisoformat(str(value).strip())
        except ValueError:
            return read_duration(value)
    if moment.tzinfo is None:
        raise Refused(f"{shown(value)} names no time zone", "end it in Z for UTC, or in an offset such as +01:00")
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def seconds(duration: str) -> float:
    """The length of what `read_duration` took."""
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(duration))


def moment(deadline: str, *, launched_at: float) -> float:
    """The epoch seconds of what `read_deadline` took."""
    if "T" in deadline:
        return datetime.fromisoformat(deadline).timestamp()
    return launched_at + seconds(deadline)


def check(recovery: Mapping[str, Any], path: Path, report: Report) -> None:
    """Report a deadline without what it needs, or beside a strategy that does not look at it."""
    strategy = recovery.get("strategy")
    if strategy == "DEADLINE":
        if "deadline" not in recovery:
            report.problem(path, "DEADLINE needs a deadline", "add, for example, `deadline: 60h`")
    elif "deadline" in recovery:
        fix = "write `strategy: DEADLINE`, or leave the deadline out"
        report.problem((*path, "deadline"), f"{strategy} looks at no deadline", fix)
