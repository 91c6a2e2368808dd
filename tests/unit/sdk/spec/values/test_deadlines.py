"""`deadline` and `work`: accepted forms, their values, and the errors of wrong ones."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from perdure.sdk import Task
from perdure.sdk.requirements import recovery
from perdure.sdk.spec.problems import TaskError

LAUNCHED = 1_790_000_000.0
DAY = datetime(2026, 12, 1, 8, tzinfo=UTC).timestamp()


def task(text: str) -> Task:
    return Task.from_yaml_str(f"run: x\nresources:\n  job_recovery: {text}\n")


@pytest.mark.parametrize(
    ("text", "deadline_at", "work_s"),
    [
        ("{strategy: DEADLINE, deadline: 60h, work: 48h}", LAUNCHED + 60 * 3600, 48 * 3600),
        ("{deadline: 1d 12h, work: 90m}", LAUNCHED + 36 * 3600, 5400),
        ("{deadline: 2026-12-01T08:00Z, work: 1.5h}", DAY, 5400),
        ("{deadline: 2026-12-01T09:00:00+01:00, work: 1h}", DAY, 3600),
        ("{deadline: '2026-12-01 08:00:00Z', work: 1h}", DAY, 3600),
    ],
)
def test_deadline__becomes_epoch_seconds(text: str, deadline_at: float, work_s: float) -> None:
    parsed = recovery(task(text).resources, launched_at=LAUNCHED)
    assert (parsed.strategy, parsed.deadline_at, parsed.work_s) == ("DEADLINE", deadline_at, work_s)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("DEADLINE", "needs a deadline"),
        ("{strategy: DEADLINE, work: 48h}", "add, for example, `deadline: 60h`"),
        ("{strategy: CHEAPEST, deadline: 60h, work: 48h}", "CHEAPEST does not use a deadline"),
        ("{deadline: 60, work: 48h}", "allowed: a duration such as 48h"),
        ("{deadline: 60h, work: 0h}", "allowed: a duration such as 48h"),
        ("{deadline: 2026-12-01T08:00, work: 48h}", "names no time zone; end it in Z"),
        ("{deadline: '9999-12-31T23:59-14:00', work: 1h}", "outside of the years 1 to 9999 in UTC"),
        ("{deadline: '0001-01-01T00:00+14:00', work: 1h}", "outside of the years 1 to 9999 in UTC"),
        ("{deadline: ٦٠h, work: 1h}", "allowed: a duration such as 48h"),
        ("{strategy: VALUE, patience: -1}", "allowed: a number from 0"),
    ],
)
def test_deadline__rejects_invalid_values(text: str, message: str) -> None:
    with pytest.raises(TaskError, match=message.replace("`", ".")):
        task(text)


def test_deadline__is_shared_by_alternatives() -> None:
    text = "run: x\nresources: {job_recovery: {deadline: 0h}, any_of: [{cpus: 1}, {cpus: 2}]}\n"
    with pytest.raises(TaskError, match="a duration such as 48h"):
        Task.from_yaml_str(text)
