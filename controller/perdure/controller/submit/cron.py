"""Cron expressions with a time zone: when a schedule is due next. Pure; APScheduler computes the times.

Five fields, as in crontab(5): minute, hour, day of the month, month, day of the week (0 and 7: Sunday). A job that
names its hours runs once when the clocks are set back, and an hour later when its time is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.triggers.cron import CronTrigger

_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS = 5


class BadCron(ValueError):
    """The expression or the time zone is invalid. `where`: which of the two; `fix`: what to write."""

    def __init__(self, message: str, where: str, fix: str) -> None:
        super().__init__(message)
        self.where, self.fix = where, fix


@dataclass(frozen=True)
class Cron:
    """A valid expression in a valid time zone."""

    expression: str
    zone: ZoneInfo

    @classmethod
    def parse(cls, expression: str, time_zone: str) -> Cron:
        """Raises BadCron."""
        try:
            zone = ZoneInfo(time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            fix = "use a name of the IANA database, such as Europe/Berlin or UTC"
            raise BadCron(f"there is no time zone {time_zone!r}", "time_zone", fix) from None
        cron = cls(" ".join(expression.split()), zone)
        try:
            cron.trigger()
        except ValueError as error:
            fix = "write five fields: minute, hour, day, month, day of the week; `0 3 * * 1` is every Monday at 3:00"
            raise BadCron(f"{expression!r} is no cron expression: {error}", "cron", fix) from None
        return cron

    def trigger(self) -> CronTrigger:
        """Raises ValueError."""
        fields = self.expression.split(" ")
        if len(fields) != _FIELDS:
            raise ValueError(f"it has {len(fields)} fields")
        minute, hour, day, month, weekday = fields
        if day != "*" and weekday != "*":
            raise ValueError("it names both a day of the month and a day of the week")
        return CronTrigger(
            minute=minute, hour=hour, day=day, month=month, day_of_week=_weekdays(weekday), timezone=self.zone
        )

    def next_after(self, at: float) -> float | None:
        """The first time after `at` (epoch seconds); None if there is none."""
        trigger, now = self.trigger(), datetime.fromtimestamp(at, self.zone)
        names_hours = not self.expression.split(" ")[1].startswith("*")
        candidate = _later(trigger, now)
        while candidate is not None and names_hours and candidate.replace(tzinfo=None) <= now.replace(tzinfo=None):
            candidate = _later(trigger, candidate)  # the clocks were set back: this hour has been before
        return None if candidate is None else candidate.timestamp()


def _later(trigger: CronTrigger, now: datetime) -> datetime | None:
    # The sum of a local time and a duration would ignore that the clocks are set in between.
    soon = datetime.fromtimestamp(int(now.timestamp()) + 1, now.tzinfo)
    fire_at: datetime | None = trigger.get_next_fire_time(None, soon)
    return fire_at


def _weekdays(field: str) -> str:
    """Crontab's days of the week as names: APScheduler counts from Monday. Raises ValueError."""
    if field.startswith("*"):
        if field == "*":
            return field
        field = field.replace("*", "0-6", 1)
    days: list[int] = []
    for part in field.lower().split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        begin, end = _weekday(first), _weekday(last if dash else first)
        if begin > end or (step and not step.isdecimal()) or step == "0":
            raise ValueError(f"{part!r} names no days of the week")
        days += range(begin, end + 1, int(step or 1))
    return ",".join(dict.fromkeys(_DAYS[day % 7] for day in days))


def _weekday(text: str) -> int:
    if text in _DAYS:
        return _DAYS.index(text)
    if not text.isdecimal() or not 0 <= int(text) <= len(_DAYS):
        raise ValueError(f"{text!r} is no day of the week")
    return int(text)
