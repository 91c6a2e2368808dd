"""When schedules are due, also when the clocks are set."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from perdure.controller.submit.cron import BadCron, Cron

BERLIN = ZoneInfo("Europe/Berlin")


def times(expression: str, after: str, count: int, zone: str = "Europe/Berlin") -> list[str]:
    """The next times in local time, with their offset from UTC."""
    cron, at, found = Cron.parse(expression, zone), datetime.fromisoformat(after).timestamp(), []
    for _ in range(count):
        due = cron.next_after(at)
        assert due is not None
        assert due > at
        at = due
        found.append(datetime.fromtimestamp(due, ZoneInfo(zone)).isoformat(timespec="minutes"))
    return found


@pytest.mark.parametrize(
    ("expression", "first"),
    [
        ("0 3 * * *", "2026-11-27T03:00+01:00"),
        ("*/15 * * * *", "2026-11-26T12:15+01:00"),
        ("0 3 * * 1", "2026-11-30T03:00+01:00"),  # a Monday
        ("0 3 * * mon-fri", "2026-11-27T03:00+01:00"),
        ("0 3 * * 0", "2026-11-29T03:00+01:00"),
        ("0 3 * * 7", "2026-11-29T03:00+01:00"),
        ("0 3 * * 5-7", "2026-11-27T03:00+01:00"),
        ("0 3 * * */3", "2026-11-28T03:00+01:00"),  # Sunday, Wednesday, Saturday
        ("30 4 1 * *", "2026-12-01T04:30+01:00"),
        ("0 0 29 2 *", "2028-02-29T00:00+01:00"),
        (" 0  3 * *  * ", "2026-11-27T03:00+01:00"),
    ],
)
def test_next__follows_crontab(expression: str, first: str) -> None:
    assert times(expression, "2026-11-26T12:00:00+01:00", 1) == [first]


def test_clocks_set_back__run_a_job_once() -> None:
    assert times("30 2 * * *", "2026-10-24T03:00:00+02:00", 2) == ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]


def test_clocks_set_back__do_not_stop_what_runs_every_hour() -> None:
    found = times("0 * * * *", "2026-10-25T01:30:00+02:00", 3)
    assert found == ["2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00", "2026-10-25T03:00+01:00"]


def test_clocks_set_forward__run_a_job_whose_time_is_skipped_an_hour_later() -> None:
    assert times("30 2 * * *", "2026-03-28T03:00:00+01:00", 2) == ["2026-03-29T03:30+02:00", "2026-03-30T02:30+02:00"]


def test_expression__that_is_never_due_has_no_time() -> None:
    assert Cron.parse("0 0 30 2 *", "UTC").next_after(1.8e9) is None


@pytest.mark.parametrize(
    ("expression", "zone", "where"),
    [
        ("0 3 * *", "UTC", "cron"),
        ("60 3 * * *", "UTC", "cron"),
        ("0 3 * * 8", "UTC", "cron"),
        ("0 3 * * fri-mon", "UTC", "cron"),
        ("0 3 * * */0", "UTC", "cron"),
        ("0 3 1 * 1", "UTC", "cron"),
        ("every day", "UTC", "cron"),
        ("0 3 * * *", "Berlin", "time_zone"),
        ("0 3 * * *", "", "time_zone"),
        ("0 3 * * *", "../etc", "time_zone"),
    ],
)
def test_parse__refuses_what_is_invalid(expression: str, zone: str, where: str) -> None:
    with pytest.raises(BadCron) as refused:
        Cron.parse(expression, zone)
    assert refused.value.where == where
    assert refused.value.fix
