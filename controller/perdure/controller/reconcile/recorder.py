"""Records decisions: one guarded transaction for all pending ones, before anything outside the controller changes.

`loop` hands the recorded intents to `execute.dispatcher`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog
from sqlalchemy import Connection, Engine

from perdure.controller.execute.call_types import IntentOutcome, RetryLater
from perdure.controller.reconcile.intent_builder import IntentBuilder
from perdure.controller.reconcile.market_state import MarketState, record_observations, record_unavailable
from perdure.controller.reconcile.work_items import CheckpointReport, JobEvent, OwnedJob, concerns_nodes
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.store.clusters import cluster_disks
from perdure.controller.store.engine import pg_notify
from perdure.controller.store.engine.batch_writer import WriteBatch
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.engine.pg_notify import Topic
from perdure.controller.store.records import intents, job_claims, jobs, peer_messages
from perdure.controller.store.records.intents import Intent, IntentKind
from perdure.recovery import actions
from perdure.recovery.actions import Step, TimelineEntry
from perdure.recovery.frozen import replace
from perdure.recovery.market.history import OfferObservation
from perdure.recovery.market.unavailable import UnavailableOffer

log = structlog.get_logger(__name__)

# Of one node, in the timeline. The numbers of its messages are unique, so this bounds what a job can write there.
MAX_SHOWN_CHECKPOINTS = 50_000


class AlreadyRecorded(Exception):
    """The event came in a peer message that no longer exists: it was recorded before."""


@dataclass(frozen=True)
class Decision:
    """What was decided on an event of an owned job."""

    owned: OwnedJob
    event: JobEvent
    step: Step

    def __post_init__(self) -> None:
        if self.step.wake_at is not None and not math.isfinite(self.step.wake_at):
            raise ValueError(f"job {self.event.job_id} would wake at {self.step.wake_at}")

    @property
    def has_changes(self) -> bool:
        """Whether there is anything to write."""
        event, before, after = self.event, self.owned.view, self.step.job
        has_records = event.notes or event.performed or event.checkpoint or event.message_id is not None
        return bool(self.step.actions or has_records or after.is_finalized or after != before)

    @property
    def concerns_nodes(self) -> bool:
        return concerns_nodes(self.owned.view, self.step.job)

    @property
    def unavailable(self) -> list[UnavailableOffer]:
        return [a.unavailable for a in self.step.actions if isinstance(a, actions.AvoidOffer)]

    @property
    def observations(self) -> list[OfferObservation]:
        """Those that count for every job."""
        return [
            a.observation for a in self.step.actions if isinstance(a, actions.RecordObservation) if not a.unconfirmed
        ]

    @property
    def unconfirmed_observations(self) -> list[OfferObservation]:
        return [a.observation for a in self.step.actions if isinstance(a, actions.RecordObservation) if a.unconfirmed]

    @property
    def guard_columns(self) -> dict[str, float | None]:
        """The columns that the guarded update of the job writes."""
        cancel = self.step.job.cancel
        return {
            "wake_at": self.step.wake_at,
            "cancel_at": cancel.at if cancel else None,
            "cancel_grace_s": cancel.grace_s if cancel else None,
        }


class DecisionObserver(Protocol):
    """Sees what is recorded: it counts and tells, and decides nothing."""

    def on_recording(self, conn: Connection, decisions: Sequence[Decision], now: float, /) -> None: ...

    def on_recorded(self, decision: Decision, now: float, /) -> None: ...

    def on_transaction(self, seconds: float, /) -> None: ...


@dataclass(eq=False)
class Recorder:
    """Records decisions and what follows from them."""

    database: Engine
    market: MarketState
    intent_builder: IntentBuilder
    has_open: Callable[[int, int | None], bool]  # (job, intent): whether the job has other open intents
    observer: DecisionObserver

    def record(self, decisions: Sequence[Decision], now: float) -> list[list[Intent] | None]:
        """Record decisions, each on a different job, in one guarded transaction.

        Returns the new intents of each; None for a decision that had nothing to write.
        Raises LeaseLost, AlreadyRecorded, and what the database raises; then nothing has changed.
        """
        changed = [decision for decision in decisions if decision.has_changes]
        added: dict[int, list[Intent]] = {}
        if changed:
            added = self._record(changed, now)
        return [added.get(decision.step.job.id) for decision in decisions]

    def _record(self, changed: Sequence[Decision], now: float) -> dict[int, list[Intent]]:
        """Returns the new intents of each job."""
        started = time.perf_counter()
        with self.database.begin() as conn:
            writes = WriteBatch(conn)
            if not peer_messages.consume(conn, [d.event.message_id for d in changed if d.event.message_id is not None]):
                raise AlreadyRecorded
            job_claims.update_guarded(conn, [(decision.owned.claim, decision.guard_columns) for decision in changed])
            for decision in changed:
                self._write(writes, decision, now)
            decided = [(decision.step.job, decision.step.actions) for decision in changed]
            recorded = self.intent_builder.record(conn, decided, now)
            added = {
                decision.step.job.id: recorded.get(decision.step.job.id) or self._finalize(writes, decision, now)
                for decision in changed
            }
            observe = self.market.boot_failures.observe
            held = [(d.step.job.id, u) for d in changed for u in observe(d.owned.view, d.step.job, now)]
            unavailable = [(d.step.job.id, u) for d in changed for u in d.unavailable if self.market.is_new(u)]
            unavailable += held
            record_unavailable(writes, unavailable, now)
            record_observations(writes, [observation for d in changed for observation in d.observations], now)
            writes.flush()
            self.observer.on_recording(conn, changed, now)
            pg_notify.notify_all(conn, Topic.JOB, (d.step.job.id for d in changed if d.concerns_nodes))
            failpoint("event.recording")
        self._observe(changed, now, time.perf_counter() - started)
        for decision in changed:
            failpoint("event.recorded")
            _reach_failpoints(decision.event)
            job_id = decision.step.job.id
            self.market.add_unavailable(decision.unavailable, job_id)
            self.market.add_unconfirmed(job_id, observations=decision.unconfirmed_observations)
            self.market.confirm(job_id, decision.observations)
        for job_id, offer in held:
            log.error("cloud.held", cloud=offer.cloud, reason=offer.message)
            self.market.add_unavailable([offer], job_id)
        return added

    def _observe(self, recorded: Sequence[Decision], now: float, seconds: float) -> None:
        """The transaction is committed: a bug in the observer must not have it taken for a failure."""
        try:
            self.observer.on_transaction(seconds)
            for decision in recorded:
                self.observer.on_recorded(decision, now)
        except Exception:
            log.exception("metrics.failed")

    def record_retry(self, intent: Intent, retry: RetryLater, now: float, wake_at: float) -> None:
        """Record the error of a try whose result is not final. Best effort: the next try reports its error again."""
        if retry.error is None:
            return
        try:
            with self.database.begin() as conn:
                intents.record_failed_try(conn, intent.id, error=retry.error, wake_at=wake_at)
                if retry.disks is not None:
                    cluster_disks.record(conn, intent.request["cluster_id"], retry.disks, now)
        except UNAVAILABLE as error:
            log.warning("database.unavailable", error=str(error))

    def _write(self, writes: WriteBatch, decision: Decision, now: float) -> None:
        event, before, after = decision.event, decision.owned.view, decision.step.job
        conn = writes.conn
        notes = [*event.notes, *(a for a in decision.step.actions if isinstance(a, TimelineEntry))]
        jobs.save(writes, before, after, now)
        if event.performed is not None:
            _close(writes, *event.performed, now)
        if event.checkpoint is not None and _is_new(conn, event.checkpoint):
            notes += _shown(event.checkpoint)
        jobs.append_timeline(writes, after.id, notes, now)

    def _finalize(self, writes: WriteBatch, decision: Decision, now: float) -> list[Intent]:
        """Finalize the job if it needs no more work. Returns the intent to remove its buckets, which comes before."""
        performed, after = decision.event.performed, decision.step.job
        if not after.is_finalized or self.has_open(after.id, performed[0].id if performed else None):
            return []
        removal = self.intent_builder.record_removal(writes.conn, after, now)
        if not removal:
            jobs.finalize(writes, after.id)
            failpoint("job.finalizing")
        return removal


def _close(writes: WriteBatch, intent: Intent, outcome: IntentOutcome, now: float) -> None:
    intents.complete(writes, intent.id, outcome=outcome.result, error=outcome.error, now=now)
    if intent.kind in (IntentKind.LAUNCH, IntentKind.TERMINATE):
        jobs.record_lifetimes(writes, intent.attempt_key, outcome.lifetimes)
    if outcome.disks is not None:
        cluster_disks.record(writes.conn, intent.request["cluster_id"], outcome.disks, now)
    failpoint("intent.closing")


def _is_new(conn: Connection, checkpoint: CheckpointReport) -> bool:
    failpoint("checkpoint.recording")
    if jobs.advance_checkpoint_seq(conn, checkpoint.key, checkpoint.rank, checkpoint.seq):
        return True
    # It is a repeat, or a later report overtook it: that one reached the job's next owner directly, not in a message.
    return not jobs.has_checkpoint_entry(conn, checkpoint.key[0], checkpoint.note)


def _shown(checkpoint: CheckpointReport) -> list[TimelineEntry]:
    """The timeline's entries for the report: of one node's reports, it has a limited number."""
    if checkpoint.seq > MAX_SHOWN_CHECKPOINTS:
        return []
    if checkpoint.seq == MAX_SHOWN_CHECKPOINTS:
        message = f"the timeline has {MAX_SHOWN_CHECKPOINTS} checkpoint messages of this node and shows no more of them"
        return [replace(checkpoint.note, message=message)]
    return [checkpoint.note]


def _reach_failpoints(event: JobEvent) -> None:
    if event.performed is not None:
        failpoint("intent.closed")
    if event.checkpoint is not None:
        failpoint("checkpoint.recorded")
