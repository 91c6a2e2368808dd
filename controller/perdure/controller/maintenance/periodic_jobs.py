"""The ticker: runs the controller's periodic jobs, each at its own interval. It wakes no managed job: when one of them
is to be looked at again is a timer of `reconcile.timer_queue`.

APScheduler runs them. It plans by the wall clock, and a wall clock that is set back by an hour would stop it for an
hour, with the renewal of the lease and all else. So `_ElapsedTimeStore` decides by elapsed time which jobs are due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

import structlog
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.job import Job
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

from perdure.controller.clouds.pricing import price_list
from perdure.controller.runtime.clock import since_boot
from perdure.controller.store.engine.database import UNAVAILABLE

log = structlog.get_logger(__name__)

MAX_WAIT_S = 1.0
"""How long the scheduler sleeps at most: a sleep whose length was computed while the clock was set may be too long."""
MAX_CONCURRENT_RUNS = 32
"""More than there are jobs: one that hangs must not keep another, such as the renewal of the lease, from running."""


class PeriodicJobs:
    """Runs jobs in threads, once `start` is called. A job does not run twice at a time: a run that is late is skipped.

    Intervals are those of `elapsed` (seconds): no setting of the wall clock moves a run. An error of a job ends only
    that run. An unavailable database is logged in one line.
    """

    def __init__(self, elapsed: Callable[[], float] = since_boot) -> None:
        self._store = _ElapsedTimeStore(elapsed)
        self._scheduler = _Scheduler(
            timezone=UTC,
            jobstores={"default": self._store},
            executors={"default": ThreadPoolExecutor(MAX_CONCURRENT_RUNS)},
            # No run is dropped because it begins late.
            job_defaults={"misfire_grace_time": None, "max_instances": 1, "coalesce": True},
        )

    def every(self, interval_s: float, job: Callable[[], object], *, at_start: bool = False) -> None:
        """Run `job` every `interval_s` seconds of real time. `at_start`: also as soon as the ticker starts."""

        def run() -> None:
            try:
                job()
            except UNAVAILABLE as error:
                log.warning("database.unavailable", error=str(error))

        added = self._scheduler.add_job(run, IntervalTrigger(seconds=interval_s, timezone=UTC))
        if at_start:
            self._store.due_at[added.id] = float("-inf")

    def refresh_prices(self, clouds: Iterable[object]) -> None:
        """Refresh the price list of each cloud that has one."""
        for cloud in clouds:
            if isinstance(cloud, price_list.HasPriceList):
                self.every(price_list.TICK_S, cloud.prices.refresh)

    def start(self) -> None:
        self._scheduler.start()

    def stop(self) -> None:
        """Start no more runs. Does not wait for those under way."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)


class _Scheduler(BackgroundScheduler):  # type: ignore[misc]
    """Looks at its jobs at least every `MAX_WAIT_S`. An error while it does must not end its thread: it renews the
    lease."""

    def _process_jobs(self) -> float:
        try:
            wait_s = super()._process_jobs()
        except Exception:
            log.exception("ticker.failed")
            return MAX_WAIT_S
        return MAX_WAIT_S if wait_s is None else min(wait_s, MAX_WAIT_S)


class _ElapsedTimeStore(MemoryJobStore):  # type: ignore[misc]
    """Jobs that are due by elapsed time. The wall-clock times that APScheduler computes for them are ignored."""

    def __init__(self, elapsed: Callable[[], float]) -> None:
        super().__init__()
        self.due_at: dict[str, float] = {}  # the job's ID → the time of `elapsed` of its next run
        self._elapsed = elapsed

    def add_job(self, job: Job) -> None:
        super().add_job(job)
        self.due_at.setdefault(job.id, self._elapsed() + job.trigger.interval_length)

    def update_job(self, job: Job) -> None:
        """APScheduler calls this when a run has begun or was skipped because the previous one has not ended."""
        super().update_job(job)
        self.due_at[job.id] = self._elapsed() + job.trigger.interval_length

    def get_due_jobs(self, now: datetime) -> list[Job]:
        elapsed = self._elapsed()
        due = [job for job in self.get_all_jobs() if self.due_at[job.id] <= elapsed]
        for job in due:
            job.next_run_time = now  # one run, however late it is
        return due

    def get_next_run_time(self) -> datetime | None:
        if not self.due_at:
            return None
        wait_s = max(0.0, min(self.due_at.values()) - self._elapsed())
        return datetime.now(UTC) + timedelta(seconds=wait_s)  # noqa: TID251 (APScheduler subtracts its own `now`)
