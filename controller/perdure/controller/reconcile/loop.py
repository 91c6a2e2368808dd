"""The reconcile loop: one thread that takes events one by one, asks `step`, records the result, and only then acts.

Everything that changes a job passes through here, so no two decisions on it are made at the same time. Waiting is data:
a heap of wake times, rebuilt from the database. `recorder` writes decisions; `execute.dispatcher` takes their intents.

Jobs take turns: one transaction records at most one event of each job, and the other events of that job wait beside the
queue. So a job with many events, as when its node sends what it likes, delays itself alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog
from sqlalchemy import Engine

from perdure.controller.execute.call_types import RetryLater
from perdure.controller.execute.dispatcher import Dispatcher
from perdure.controller.execute.machine_ids import MachineIds, machines_of
from perdure.controller.reconcile import work_items
from perdure.controller.reconcile.adoption import Adoption, reload
from perdure.controller.reconcile.failed_events import FailedEvents
from perdure.controller.reconcile.inbox import ReconcilerInbox
from perdure.controller.reconcile.intent_builder import IntentBuilder
from perdure.controller.reconcile.market_state import MarketState
from perdure.controller.reconcile.outage import SuspendDetector
from perdure.controller.reconcile.recorder import AlreadyRecorded, Decision, Recorder
from perdure.controller.reconcile.timer_queue import JobTurns, QueueEmpty
from perdure.controller.reconcile.work_items import AdoptJobs, JobEvent, RecheckOwnership, ReconnectDeadline
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.runtime.request_priority import RequestPriorityGate
from perdure.controller.store.engine.database import UNAVAILABLE, is_transient
from perdure.controller.store.records.intents import Intent
from perdure.controller.store.records.job_claims import LeaseLost
from perdure.recovery import actions
from perdure.recovery.directive import Directive
from perdure.recovery.job import DEFAULT_RECOVERIES_PER_HOUR, JobView, Timeouts, View
from perdure.recovery.step import step

log = structlog.get_logger(__name__)

_DATABASE_RETRY_S = 1.0  # of real time
# From this backlog on the loop no longer yields to requests of users. At twice that, new jobs are rejected.
_BACKLOG_HIGH_WATER = 2_500
# The most events recorded in one transaction. A longer one would block other writers of the database.
_BATCH_SIZE = 64
# The most items taken from the queue for one transaction, most of which then wait for their job's turn.
_MAX_TAKEN = 2_048


_Command = TypeVar("_Command", AdoptJobs, RecheckOwnership, ReconnectDeadline)


class Reconciler:
    """Decides on the jobs that this controller owns. Except for `start` and `stop`, only its own thread calls it.

    `timeouts` are in seconds of `clock`; `speed` is that of `clock`, relative to real time. `batch_size`: the most
    events, each of a different job, that are recorded together. The reconcile thread calls `forward` with events of
    jobs that this controller does not own, `on_directive` with changed directives, `on_job_changed` with changed jobs.
    """

    def __init__(
        self,
        *,
        inbox: ReconcilerInbox,
        dispatcher: Dispatcher,
        database: Engine,
        clock: Clock,
        market: MarketState,
        timeouts: Timeouts,
        intent_builder: IntentBuilder,
        forward: Callable[[JobEvent], None] = work_items.complete,
        on_directive: Callable[[AttemptKey, Directive], None] = lambda _key, _directive: None,
        on_job_changed: Callable[[int], None] = lambda _job_id: None,
        speed: float = 1.0,
        batch_size: int = _BATCH_SIZE,
        recoveries_per_hour: int | None = DEFAULT_RECOVERIES_PER_HOUR,
    ) -> None:
        self._inbox = inbox
        self._queue, self._owned, self._outage = inbox.queue, inbox.owned, inbox.outage
        self._dispatcher = dispatcher
        self._database, self._clock, self._market = database, clock, market
        self._timeouts = timeouts
        self._recoveries_per_hour = recoveries_per_hour
        self._forward = forward
        self._on_directive, self._on_job_changed = on_directive, on_job_changed
        self._speed = speed
        self._batch_size = batch_size
        self._recorder = Recorder(database, market, intent_builder, dispatcher.has_open, inbox.reports)
        self._suspend_detector = SuspendDetector(clock, speed)
        #: What cannot be recorded or handled although the database works.
        self.failed = FailedEvents(lambda s, item: self._schedule(clock.now() + s * speed, item), inbox.submit)
        self._adoption = Adoption(
            database,
            clock,
            self._owned,
            speed,
            start_intents=self._start_intents,
            decide=self._decide,
            schedule=self._schedule,
            drop=self._drop,
            unreadable=self.failed.add_unreadable,
        )
        #: Decisions that are not recorded yet, by job.
        self._decided: dict[int, Decision] = {}
        #: Items for jobs in `_decided`, and those that came after one of these items.
        self._turns: JobTurns[JobEvent | work_items.RetryIntent] = JobTurns()
        self._paused_until = 0.0
        self._was_due = False

    def start(self, request_priority: RequestPriorityGate) -> None:
        """Start the thread. It yields to the requests of `request_priority`, unless an urgent item is queued or the
        backlog is large."""

        def run_once() -> bool:
            goes_on = self.run_once(block=True)
            if not self._queue.has_urgent and self._queue.backlog() < _BACKLOG_HIGH_WATER:
                request_priority.yield_to_requests()
            return goes_on

        self._queue.start("reconcile", run_once)

    def stop(self) -> None:
        """End the thread once the queued items are handled. Jobs stay as they are."""
        self._queue.stop()

    def next_due(self) -> float | None:
        """When the next timer is due, for callers of `run_once` that do not block."""
        return self._queue.next_due

    def run_once(self, *, block: bool) -> bool:
        """Handle what waits for its turn, one item that is due or queued, and those behind it that can be recorded
        together with it.

        Returns False once stopped, or if idle without `block`.
        """
        if self._turns:
            self._check_gaps()
        # Jobs that wait for their turn leave room for those in the queue.
        turns = self._turns.take(max(1, self._batch_size // 2) if self._queue.has_more else self._batch_size)
        for item in turns:
            self._guarded(item, self._handle_turn, item)
        goes_on = (bool(turns) and not self._queue.has_more) or self._handle_next(block=block)
        for _ in range(_MAX_TAKEN):
            if not goes_on or not self._decided or not self._queue.has_more:
                break
            goes_on = self._handle_next(block=False)
        self._record()
        return goes_on

    def _handle_next(self, *, block: bool) -> bool:
        self._check_gaps()
        # Due and queued items take turns, so that many timers cannot starve the queue.
        if not (self._was_due and self._queue.has_queued) and (due := self._queue.pop_due()) is not None:
            self._was_due = True
            self._guarded(due[1], self._handle_due, *due)
            return True
        self._was_due = False
        try:
            item = self._queue.next(block=block)
        except QueueEmpty:
            return block
        if item is not None:
            self._guarded(item, self._handle, item)
        elif self._turns:  # what was queued before the end is handled first
            self._queue.enqueue(None)
            return True
        return item is not None

    def _guarded(self, item: work_items.WorkItem | Intent, handle: Callable[..., None], *args: object) -> None:
        """Handle an item. A bug that it meets must not cost the other jobs, nor end this thread."""
        try:
            handle(*args)
        except Exception as error:  # noqa: BLE001 - logged, and the item is handled again later
            self.failed.add(item, error)

    def _check_gaps(self) -> None:
        """Before anything is decided: this process may have been suspended, or the database unavailable."""
        now = self._clock.now()
        if self._suspend_detector.was_suspended(now):
            self._grant_grace(now)
        if self._outage.is_down and now >= self._paused_until:
            self._probe_database(now)

    def _probe_database(self, now: float) -> None:
        if not self._outage.probe():
            self._paused_until = now + _DATABASE_RETRY_S * self._speed
        elif self._outage.was_long:
            self._grant_grace(now)

    def _grant_grace(self, now: float) -> None:
        """No report was received for a while: restart the timeouts of all nodes before any of them counts as lost."""
        for job_id, owned in list(self._owned.items()):
            owned.since = now
            self._decide(JobEvent(job_id))

    def _handle_due(self, at: float, item: work_items.TimedItem) -> None:
        if isinstance(item, Intent):
            self._record_first(item.job_id)
            if self._dispatcher.is_tracked(item):
                self._dispatcher.perform(item, self._machines(item))
            return
        if isinstance(item, JobEvent) and item.is_wake:
            owned = self._owned.get(item.job_id)
            if owned is None or owned.wake_at != at:
                return  # the wake time has changed since
            owned.wake_at = None
            item = JobEvent(item.job_id)
        if isinstance(item, JobEvent) and item.job_id not in self._decided:
            self._handle_turn(item)  # it is older than those that wait
        else:
            self._handle(item)

    def _handle(self, item: work_items.WorkItem) -> None:
        match item:
            case JobEvent():
                self._in_turn(item.job_id, item)
            case work_items.RetryIntent(intent):
                self._in_turn(intent.job_id, item)
            case work_items.DescribeMachines():
                self._describe(item.key)
                work_items.complete(item)
            case AdoptJobs():
                for claim in item.claims:
                    for waiting in self._turns.pop_all(claim.job_id):
                        self._guarded(waiting, self._handle_turn, waiting)
                    self._record_first(claim.job_id)
                self._command(item, self._adoption.adopt)
            case RecheckOwnership():
                self._record()
                self._command(item, self._adoption.recheck)
            case ReconnectDeadline():
                self._command(item, self._adoption.report_missing_nodes)

    def _in_turn(self, job_id: int, item: JobEvent | work_items.RetryIntent) -> None:
        """Handle an item once those before it, of the same job, are recorded; other jobs' items need not wait."""
        if job_id in self._decided or job_id in self._turns:
            self._turns.add(job_id, item)
        else:
            self._handle_turn(item)

    def _handle_turn(self, item: JobEvent | work_items.RetryIntent) -> None:
        if isinstance(item, JobEvent):
            self._decide(item)
        else:
            self._handle_retry(item.intent, item.retry)

    def _command(self, command: _Command, run: Callable[[_Command], None]) -> None:
        """Run a command on all jobs. It is tried again once the database is available."""
        try:
            run(command)
        except UNAVAILABLE as error:
            log.warning("database.unavailable", error=str(error))
            self._outage.mark_down()
            self._schedule(self._clock.now() + _DATABASE_RETRY_S * self._speed, command)

    def _handle_retry(self, intent: Intent, retry: RetryLater) -> None:
        self._record_first(intent.job_id)
        if not self._dispatcher.is_tracked(intent):
            return  # the job has gone to another controller
        if retry.discovered is not None:
            self._decide(JobEvent(intent.job_id, retry.discovered))
        now = self._clock.now()
        wake_at = now + retry.after_s * self._speed
        tries = self._dispatcher.count_attempt(intent, attempted=retry.attempted)
        is_first = tries == intent.try_count + 1  # since it was taken up here
        if retry.error is not None and (is_first or retry.disks is not None):
            self._decide(work_items.retry_event(intent, retry.error))
        self._recorder.record_retry(intent, retry, now, wake_at)
        self._schedule(wake_at, intent)

    # --- decide, record, act ------------------------------------------------------------------------------

    def _decide(self, event: JobEvent) -> None:
        """Decide on an event. The decision takes effect when it is recorded, together with those on other jobs."""
        self._record_first(event.job_id)
        owned = self._owned.get(event.job_id)
        if owned is None:
            self._forward(event)
            return
        now = self._clock.now()
        if now < self._paused_until:
            self._schedule(self._paused_until, event)
            return
        try:
            if owned.commit_unknown:
                self._reload_after_unknown_commit(owned)
            market = self._market.view(event.job_id)
            view = View(owned.view, market, self._timeouts, owned.since, self._recoveries_per_hour)
            self._decided[event.job_id] = Decision(owned, event, step(view, event.event, now))
        except Exception as error:  # noqa: BLE001 - classified in _on_failure
            self._on_failure(owned, event, error, now)
        if len(self._decided) >= self._batch_size:
            self._record()

    def _record_first(self, job_id: int) -> None:
        """Record a decision on the job before the next item for it is handled."""
        if job_id in self._decided:
            self._record()

    def _record(self) -> None:
        """Record all decisions and act on them. If they cannot be recorded together, each is decided and recorded
        again on its own."""
        decided, self._decided = list(self._decided.values()), {}
        if not decided:
            return
        now = self._clock.now()
        try:
            added = self._recorder.record(decided, now)
        except Exception as error:  # noqa: BLE001 - classified in _on_failure
            if len(decided) == 1 or is_transient(error):
                for decision in decided:
                    self._on_failure(decision.owned, decision.event, error, now)
                return
            for decision in decided:  # nothing was written
                self._decide(decision.event)
                self._record()
        else:
            for decision, intents_added in zip(decided, added, strict=True):
                self._guarded(JobEvent(decision.event.job_id), self._apply, decision, intents_added)
                work_items.complete(decision.event)

    def _on_failure(self, owned: work_items.OwnedJob, event: JobEvent, error: Exception, now: float) -> None:
        """The event was not recorded, as far as is known."""
        if isinstance(error, AlreadyRecorded):
            return work_items.complete(event)
        if isinstance(error, LeaseLost):
            log.warning("lease.lost", job=event.job_id, why=str(error))
            self._drop(event.job_id)
            return self._forward(event)
        owned.commit_unknown = True
        if is_transient(error):
            log.warning("database.unavailable", job=event.job_id, error=str(error))
            self._outage.mark_down()
            self._paused_until = now + _DATABASE_RETRY_S * self._speed
            self._schedule(self._paused_until, event)
        else:
            self.failed.add(event, error)

    def _reload_after_unknown_commit(self, owned: work_items.OwnedJob) -> None:
        """Reload the job as recorded: a transaction that seemed to fail may have been committed.

        Raises LeaseLost.
        """
        view, open_intents = reload(self._database, owned.claim)
        before, owned.view, owned.commit_unknown = owned.view, view, False
        self._start_intents([intent for intent in open_intents if not self._dispatcher.is_tracked(intent)])
        self._push_directives(before, view)

    def _apply(self, decision: Decision, added: list[Intent] | None) -> None:
        """The decision is recorded: start its intents and push its directives."""
        owned, event, decided = decision.owned, decision.event, decision.step
        before, owned.view = owned.view, decided.job
        owned.commit_unknown = True  # an error below has the job loaded again, with its open intents
        if decided.wake_at is not None and decided.wake_at != owned.wake_at:
            self._schedule(decided.wake_at, JobEvent(owned.view.id, is_wake=True))
        owned.wake_at = decided.wake_at
        waiting = self._dispatcher.complete(event.performed[0]) if event.performed else None
        self._start_intents(added or [])
        if waiting:
            self._dispatcher.perform(waiting, self._machines(waiting))
        for action in decided.actions:
            if isinstance(action, actions.DescribeMachines):
                self._describe((owned.view.id, action.task, action.generation))
        self._push_directives(before, owned.view)
        if added is not None:
            self._on_job_changed(owned.view.id)
        owned.commit_unknown = False
        if added is not None and owned.view.is_finalized and not self._dispatcher.has_open(owned.view.id):
            log.info("job.finalized", job=owned.view.id)
            failpoint("job.finalized")
            self._drop(owned.view.id)

    def _start_intents(self, new: Sequence[Intent]) -> None:
        for intent in new:
            self._dispatcher.track(intent)
        for intent in new:
            self._guarded(intent, self._dispatcher.perform, intent, self._machines(intent))

    def _push_directives(self, before: JobView, after: JobView) -> None:
        for key, directive in work_items.changed_directives(before, after):
            self._on_directive(key, directive)

    def _schedule(self, at: float, item: work_items.TimedItem) -> None:
        self._queue.schedule(at, item)

    def _drop(self, job_id: int) -> None:
        self._owned.drop(job_id)
        self._dispatcher.forget(job_id)
        self._market.forget_job(job_id)

    def _describe(self, key: AttemptKey) -> None:
        if (attempt := work_items.find_attempt(self._inbox.view(key[0]), key)) is not None:
            self._dispatcher.describe(key, attempt.offer, machines_of(attempt))

    def _machines(self, intent: Intent) -> MachineIds:
        return machines_of(work_items.find_attempt(self._inbox.view(intent.job_id), intent.attempt_key))
