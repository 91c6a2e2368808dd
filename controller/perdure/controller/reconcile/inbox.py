"""The inbox of the reconcile loop: how the rest of the controller submits events to `loop` and reads its jobs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from sqlalchemy import Engine

from perdure.controller.execute.call_types import DescribeResult, IntentResult
from perdure.controller.reconcile import work_items
from perdure.controller.reconcile.market_state import MarketState
from perdure.controller.reconcile.outage import DatabaseOutage
from perdure.controller.reconcile.reports.job_metrics import JobMetrics
from perdure.controller.reconcile.reports.reports import DecisionReports
from perdure.controller.reconcile.timer_queue import TimerQueue
from perdure.controller.reconcile.work_items import (
    AdoptJobs,
    DescribeMachines,
    JobEvent,
    OwnedJob,
    RecheckOwnership,
    TimedItem,
    WorkItem,
)
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.runtime.metrics.daemon_metrics import DaemonMetrics
from perdure.controller.store.records.job_claims import Claim
from perdure.recovery import events
from perdure.recovery.directive import Directive
from perdure.recovery.job import JobView
from perdure.recovery.market.history import rebalance_advice

# One SQL statement takes a limited number of parameters.
_ADOPTION_BATCH_SIZE = 1000
_MAX_REMEMBERED = 10_000  # jobs that were dropped: many times what is accepted and ends within a moment
# No cloud announces an interruption earlier than this.
MAX_NOTICE_S = 3600.0


def clamp_notice_deadline(deadline: float, now: float, speed: float) -> float:
    """A deadline that a node or a queue reports, moved into the next hour: it may be any number.

    `deadline` and `now`: by the clock, which runs at `speed`.
    """
    if not math.isfinite(deadline):
        return now
    return min(max(deadline, now), now + MAX_NOTICE_S * speed)


class OwnedJobs(dict[int, OwnedJob]):
    """The jobs of this controller, by id. Metrics count what enters and leaves."""

    def __init__(self, metrics: JobMetrics) -> None:
        super().__init__()
        self._metrics = metrics
        self._dropped: dict[int, None] = {}  # the last ones, in order

    def __setitem__(self, job_id: int, owned: OwnedJob) -> None:
        super().__setitem__(job_id, owned)
        self._metrics.on_owned(owned.view)

    def drop(self, job_id: int) -> None:
        if self.pop(job_id, None) is not None:
            self._metrics.on_dropped(job_id)
            self._dropped[job_id] = None
            if len(self._dropped) > _MAX_REMEMBERED:
                del self._dropped[next(iter(self._dropped))]

    def was_dropped(self, job_id: int) -> bool:
        """Whether the job was dropped a while ago at most: what was known when it was accepted is out of date."""
        return job_id in self._dropped


class ReconcilerInbox:
    """The entrance to the reconcile loop. Every method may be called from any thread.

    The fields without an underscore belong to the reconcile thread. `speed`: of `clock`, relative to real time.
    """

    def __init__(
        self,
        database: Engine,
        clock: Clock,
        market: MarketState,
        speed: float = 1.0,
        reports: DecisionReports | None = None,
    ) -> None:
        self.queue: TimerQueue[WorkItem, TimedItem] = TimerQueue(clock, speed, work_items.is_urgent)
        self.reports = reports or DecisionReports(JobMetrics(DaemonMetrics(), clock))
        self.owned = OwnedJobs(self.reports.job_metrics)
        self.outage = DatabaseOutage(database, clock, speed)
        self._clock = clock
        self._market = market
        self._speed = speed

    # --- requests to the loop ---------------------------------------------------------------------------

    def submit(self, event: JobEvent) -> Future[None]:
        """Queue `event`. The future completes when it is recorded, here or by the controller that owns the job."""
        event, done = event.with_future()
        self.queue.enqueue(event)
        return done

    def post(self, job_id: int, event: events.Event) -> None:
        """Queue an event whose recording nobody waits for."""
        self.queue.enqueue(JobEvent(job_id, event))

    def adopt(self, claims: Sequence[Claim], views: Mapping[int, JobView] | None = None) -> Future[None]:
        """Take over claimed jobs: their views, open intents and wake times. The future completes when that is done.

        `views`: of all of them, for jobs that were just accepted; those are not read from the database.
        """
        parts = [tuple(claims[i : i + _ADOPTION_BATCH_SIZE]) for i in range(0, len(claims), _ADOPTION_BATCH_SIZE)]
        return [self._command(AdoptJobs(part, views or None)) for part in parts or [()]][-1]

    def recheck(self) -> Future[None]:
        """Drop the jobs that other controllers have claimed, before anything more is done for them."""
        return self._command(RecheckOwnership())

    def _command(self, command: AdoptJobs | RecheckOwnership) -> Future[None]:
        self.queue.enqueue(command)
        return command.done

    def on_result(self, result: IntentResult | DescribeResult) -> None:
        """Queue the item that follows from the result of a call."""
        self.queue.enqueue(work_items.work_item_of(result))

    def notice_deadline(self, deadline: float | None, assumed_s: float) -> float:
        """The deadline of a notice from a cloud's queue, moved into the next hour. None: `assumed_s` from now."""
        now = self._clock.now()
        return clamp_notice_deadline(now + assumed_s * self._speed if deadline is None else deadline, now, self._speed)

    def recommend_rebalance(self, key: AttemptKey, rank: int, *, confirmed: bool, is_new: bool = True) -> Future[None]:
        """A cloud reports a higher risk of preemption for a node of the attempt: advice for the market, no notice.

        `confirmed`: received from the cloud itself; otherwise the node reports it, and it counts for its own job.
        `is_new`: the job's timeline does not have it yet. The future completes when it is recorded, here or by the
        controller that owns the job.
        """
        if (attempt := work_items.find_attempt(self.view(key[0]), key)) is not None:
            advice = [rebalance_advice(attempt.offer.key, self._clock.now())]
            if confirmed:
                self._market.add_advice(advice)
            else:
                self._market.add_unconfirmed(key[0], advice=advice)
        if is_new:
            return self.submit(work_items.rebalance_event(key, rank))
        recorded: Future[None] = Future()
        recorded.set_result(None)
        return recorded

    def request_describe(self, key: AttemptKey) -> Future[None]:
        """Request a description of an attempt's machines from its cloud. The future completes once it is under way."""
        request = DescribeMachines(key)
        self.queue.enqueue(request)
        return request.done

    def report_outage(self) -> None:
        """Report that the database is unavailable. Nothing is decided until it is back, since reports are missing."""
        self.outage.mark_down()

    # --- the state of the loop --------------------------------------------------------------------------

    def backlog(self) -> int:
        """How many items are queued."""
        return self.queue.backlog()

    def had_outage_within(self, seconds: float) -> bool:
        """Whether the database was unavailable in the last `seconds` of real time, so that reports may be missing."""
        return self.outage.was_down_within(seconds * self._speed)

    def view(self, job_id: int) -> JobView | None:
        """The job as last recorded; None if this controller does not own it."""
        owned = self.owned.get(job_id)
        return owned.view if owned else None

    def num_jobs(self) -> int:
        """How many jobs this controller owns."""
        return len(self.owned)

    def owned_views(self) -> list[JobView]:
        return [owned.view for owned in list(self.owned.values())]

    def directive_of(self, key: AttemptKey) -> Directive | None:
        """The directive of an attempt's nodes: STOP for an attempt that is gone. None if this controller does not own
        the job, as far as it can tell from the attempt."""
        return work_items.directive_of(view, key) if (view := self.view(key[0])) else None
