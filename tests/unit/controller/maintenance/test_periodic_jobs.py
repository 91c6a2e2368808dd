"""The ticker runs jobs periodically, whatever is done to the wall clock, and outlives their errors."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo

import pytest
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from perdure.controller.maintenance.periodic_jobs import PeriodicJobs
from perdure.controller.runtime.clock import ManualClock
from support.helpers.timing import scaled

TIMEOUT_S = 20.0


@pytest.fixture
def ticker() -> Iterator[PeriodicJobs]:
    ticker = PeriodicJobs()
    yield ticker
    ticker.stop()


def test_every__runs_a_job_at_the_start_and_again(ticker: PeriodicJobs) -> None:
    runs = threading.Semaphore(0)
    ticker.every(0.05, runs.release, at_start=True)
    ticker.start()
    for _ in range(3):
        assert runs.acquire(timeout=TIMEOUT_S)


def test_every__waits_for_the_first_interval_by_default(ticker: PeriodicJobs) -> None:
    runs = threading.Semaphore(0)
    ticker.every(3600.0, runs.release)
    ticker.start()
    assert not runs.acquire(timeout=0.05)


def test_every__runs_a_job_again_after_a_database_error(ticker: PeriodicJobs) -> None:
    runs = threading.Semaphore(0)

    def job() -> None:
        runs.release()
        raise OperationalError("SELECT", None, Exception("the server closed the connection"))

    with capture_logs() as logs:
        ticker.every(0.05, job)
        ticker.start()
        for _ in range(2):
            assert runs.acquire(timeout=TIMEOUT_S)
    assert {entry["event"] for entry in logs} <= {"database.unavailable"}


class WallClock(datetime):
    """The wall clock, with `ahead_s` added. APScheduler reads it in these modules."""

    ahead_s = 0.0

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + timedelta(seconds=cls.ahead_s)  # noqa: TID251

    READERS = ("schedulers.base", "triggers.interval", "triggers.date", "executors.base")


@pytest.fixture
def wall_clock(monkeypatch: pytest.MonkeyPatch) -> type[WallClock]:
    monkeypatch.setattr(WallClock, "ahead_s", 0.0)
    for reader in WallClock.READERS:
        monkeypatch.setattr(f"apscheduler.{reader}.datetime", WallClock)
    monkeypatch.setattr("perdure.controller.maintenance.periodic_jobs.datetime", WallClock)
    return WallClock


STEPS_S = [-400 * 86400.0, -3600.0, -30.0, 30.0, 3600.0, 400 * 86400.0]


@pytest.mark.parametrize("step_s", STEPS_S)
def test_every__runs_on_when_the_wall_clock_is_set(
    ticker: PeriodicJobs, wall_clock: type[WallClock], step_s: float
) -> None:
    runs = threading.Semaphore(0)
    ticker.every(0.05, runs.release)
    ticker.start()
    for ahead_s in (step_s, 0.0):  # and back again
        assert runs.acquire(timeout=TIMEOUT_S)
        wall_clock.ahead_s = ahead_s
        for _ in range(3):
            assert runs.acquire(timeout=scaled(5))


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0, 400 * 86400.0])
def test_every__runs_as_often_when_the_wall_clock_is_set(
    wall_clock: type[WallClock], step_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step forward neither makes a run early nor makes up for runs that it seems to have left out."""
    monkeypatch.setattr("perdure.controller.maintenance.periodic_jobs.MAX_WAIT_S", 0.02)
    elapsed = ManualClock(0.0)
    runs = threading.Semaphore(0)
    ticker = PeriodicJobs(elapsed.now)
    ticker.every(100.0, runs.release)
    ticker.start()
    try:
        wall_clock.ahead_s = step_s
        assert not runs.acquire(timeout=0.3)
        elapsed.advance(450.0)  # the computer slept
        assert runs.acquire(timeout=TIMEOUT_S)
        assert not runs.acquire(timeout=0.3)
    finally:
        ticker.stop()


def test_first_run__survives_a_step_before_the_start(ticker: PeriodicJobs, wall_clock: type[WallClock]) -> None:
    runs = threading.Semaphore(0)
    ticker.every(3600.0, runs.release, at_start=True)
    wall_clock.ahead_s = -3600.0
    ticker.start()
    assert runs.acquire(timeout=TIMEOUT_S)


def test_late_run__is_not_dropped(
    ticker: PeriodicJobs, wall_clock: type[WallClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    class AMinuteLater(WallClock):
        ahead_s = 60.0

    monkeypatch.setattr("apscheduler.executors.base.datetime", AMinuteLater)
    runs = threading.Semaphore(0)
    ticker.every(0.05, runs.release)
    ticker.start()
    assert runs.acquire(timeout=TIMEOUT_S)


def test_hanging_jobs__do_not_hold_up_another(ticker: PeriodicJobs) -> None:
    released, runs = threading.Event(), threading.Semaphore(0)
    try:
        for _ in range(12):
            ticker.every(3600.0, released.wait, at_start=True)
        ticker.every(3600.0, runs.release, at_start=True)
        ticker.start()
        assert runs.acquire(timeout=TIMEOUT_S)
    finally:
        released.set()


def test_stop__of_a_ticker_that_was_not_started(ticker: PeriodicJobs) -> None:
    ticker.stop()


def test_ticker__outlives_an_error_of_its_own() -> None:
    calls, runs = itertools.count(), threading.Semaphore(0)

    def elapsed() -> float:
        if (call := next(calls)) == 3:
            raise OSError("the clock cannot be read")
        return float(call)

    ticker = PeriodicJobs(elapsed)
    ticker.every(0.01, runs.release)
    try:
        with capture_logs() as logged:
            ticker.start()
            for _ in range(3):
                assert runs.acquire(timeout=scaled(TIMEOUT_S))
    finally:
        ticker.stop()
    assert [line["event"] for line in logged].count("ticker.failed") <= 1
