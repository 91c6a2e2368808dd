"""A transactional outbox and inbox for events of jobs that another daemon owns.

A daemon stores such an event as a message, and acknowledges it once the message is committed. The daemon that owns the
job by then reads the message, and deletes it in the transaction that records the event. So an event is recorded once.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection, Engine

from perdure.controller.reconcile.failed_events import EventSetAside, set_aside_entry
from perdure.controller.reconcile.work_items import CheckpointReport, JobEvent, complete
from perdure.controller.runtime.clock import Clock
from perdure.controller.store.engine.database import is_transient
from perdure.controller.store.records import peer_messages
from perdure.controller.store.records.peer_messages import PeerMessage
from perdure.recovery import events
from perdure.recovery.actions import TIMELINE_KINDS, TimelineEntry
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase

log = structlog.get_logger(__name__)

POLL_INTERVAL_S = 1.0
_RETRY_S = 0.5
_MAX_NOTIFIED_JOBS = 50  # an event for more jobs notifies no daemon: each finds it when it polls
_BATCH_SIZE = 256
_MAX_IN_PROGRESS = 1000
_ID_OVERLAP = 2 * _BATCH_SIZE  # a lower id may be committed after a higher one
_MAX_LOGGED_CHARS = 8192  # of a message that is set aside

# Events from nodes and users. Events of this daemon's own timers and workers concern only its own jobs: the next owner
# has timers and workers of its own. Nor is a lost connection sent: the owner finds it in the table of connections.
_SENT_EVENTS: Mapping[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        events.CancelRequested,
        events.NodeReported,
        events.PreemptionNotice,
        events.CheckpointDurable,
        events.StepSaved,
        events.CheckpointLoaded,
        events.GpusReported,
    )
}


def encode(job_event: JobEvent) -> dict[str, Any] | None:
    """The event as plain JSON; None if it does not concern other daemons."""
    kind = type(job_event.event).__name__
    body: dict[str, Any] = {}
    if kind in _SENT_EVENTS:
        body["event"] = {"kind": kind, **asdict(job_event.event)}
    if job_event.checkpoint is not None:
        body["checkpoint"] = asdict(job_event.checkpoint)
    if job_event.notes:
        body["notes"] = [asdict(note) for note in job_event.notes]
    return body if body and job_event.performed is None else None


def decode(message: PeerMessage) -> JobEvent:
    """The event of a message. Raises KeyError, TypeError, ValueError or AttributeError if it cannot be decoded."""
    body = message.body
    checkpoint = body.get("checkpoint")
    return JobEvent(
        message.job_id,
        _event(body["event"]) if "event" in body else events.Tick(),
        checkpoint=_checkpoint(checkpoint) if checkpoint else None,
        notes=tuple(_note(note) for note in body.get("notes", ())),
        message_id=message.id,
    )


def send_to_owners(conn: Connection, job_ids: Sequence[int], event: events.Event, now: float) -> None:
    """Send an event of several jobs to their owners, as part of the caller's transaction."""
    body = encode(JobEvent(0, event))
    assert body is not None, f"{event} is not sent between daemons"
    if len(job_ids) > _MAX_NOTIFIED_JOBS:
        peer_messages.enqueue_for_all(conn, job_ids, body, now)
    else:
        peer_messages.enqueue_each(conn, [(id, body) for id in job_ids], now)


class OutboxClosed(Exception):
    """The daemon ends."""


class Outbox:
    """Stores messages in the order in which they were forwarded, in batches. Retries while the database is unavailable.

    A message that the database refuses is set aside: it is logged in full, its job's timeline says so if that can be
    stored, and the messages behind it are stored.
    """

    def __init__(self, database: Engine, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="outbox")
        self._waiting: deque[tuple[JobEvent, dict[str, Any]]] = deque()
        self._ended = threading.Event()
        #: Messages that were set aside since this process started.
        self.total_set_aside = 0

    def forward(self, job_event: JobEvent) -> None:
        """Send an event to the owner of its job. From any thread. `done` completes when the message is committed."""
        body = encode(job_event) if job_event.message_id is None else None
        if body is None:
            complete(job_event)
        elif not self._ended.is_set():
            self._waiting.append((job_event, body))
            self._thread.submit(self._write)

    def close(self) -> None:
        self._ended.set()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _write(self) -> None:
        """Store the messages that wait. Called once per message, although the first call may store all of them."""
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _BATCH_SIZE))]
        if not batch:
            return
        if (error := self._store([(event.job_id, body) for event, body in batch])) is None:
            for job_event, _ in batch:
                complete(job_event)
            return
        for job_event, body in batch:  # one of them is refused: the others are stored one by one
            error = self._store([(job_event.job_id, body)]) if len(batch) > 1 else error
            if error is None:
                complete(job_event)
            else:
                self._set_aside(job_event, body, error)

    def _store(self, messages: Sequence[tuple[int, dict[str, Any]]]) -> Exception | None:
        """Store messages, together. Returns the error if they are refused. Retries until then, or until `close`."""
        while not self._ended.is_set():
            try:
                with self._database.begin() as conn:
                    peer_messages.enqueue_each(conn, messages, self._clock.now())
                return None
            except Exception as error:  # noqa: BLE001 - returned, unless the database is unavailable
                if not is_transient(error):
                    return error
                log.warning("database.unavailable", messages=len(messages), error=str(error))
                self._ended.wait(_RETRY_S)
        return OutboxClosed()

    def _set_aside(self, job_event: JobEvent, body: dict[str, Any], error: Exception) -> None:
        if isinstance(error, OutboxClosed):
            return  # its sender waits in vain, as after a crash: the node or the user repeats it
        self.total_set_aside += 1
        content = json.dumps(body, default=repr)[:_MAX_LOGGED_CHARS]
        log.error("peer_message.set_aside", job=job_event.job_id, message=content, exc_info=error)
        entry = encode(JobEvent(job_event.job_id, notes=(set_aside_entry(type(job_event.event).__name__, error),)))
        assert entry is not None
        if (entry_error := self._store([(job_event.job_id, entry)])) is not None:
            log.error("peer_message.entry_failed", job=job_event.job_id, exc_info=entry_error)
        if job_event.done is not None and not job_event.done.done():
            job_event.done.set_exception(EventSetAside(f"{type(error).__name__}: {error}"))


class InboxReader:
    """Reads the messages for this daemon's jobs, and submits each to the reconciler once. Safe to use from any thread.

    A limited number is in progress at a time. `on_capacity` is called when nearly all of those are recorded and there
    may be more.

    A message from a newer version may contain an event that this version cannot decode. It stays for a daemon that can,
    and delays no other message. So does a message whose event could not be recorded: this daemon does not read it
    again, and another one, or the next one in its place, may succeed.
    """

    def __init__(
        self,
        database: Engine,
        owner: str,
        submit: Callable[[JobEvent], object],
        monotonic: Callable[[], float] = time.monotonic,
        on_capacity: Callable[[], object] = lambda: None,
    ) -> None:
        self._database = database
        self._owner = owner
        self._submit = submit
        self._monotonic = monotonic
        self._full_poll_at = float("-inf")
        self._newest = 0
        self._is_full = False
        self._in_progress: set[int] = set()
        self._skipped: set[int] = set()  # messages that cannot be decoded, or whose event was set aside
        self._poll_lock = threading.Lock()
        self._on_capacity = on_capacity

    def poll(self) -> int:
        """Submit every message that is not in progress, unless another thread is polling. Returns how many.

        Raises what the database raises.
        """
        if not self._poll_lock.acquire(blocking=False):
            return 0
        try:
            return self._poll()
        finally:
            self._poll_lock.release()

    def poll_and_clean(self) -> None:
        """`poll`, and delete messages for jobs that are finalized. Only without `Peers`, which does it otherwise.

        Raises what the database raises.
        """
        if self.poll():
            with self._database.begin() as conn:
                peer_messages.delete_for_finalized_jobs(conn)

    def _poll(self) -> int:
        room = _MAX_IN_PROGRESS - len(self._in_progress)
        self._is_full = room < _BATCH_SIZE
        if self._is_full:
            return 0
        # Ids are assigned before their commit, and jobs change owners: so all messages are read now and then.
        now = self._monotonic()
        is_full_poll = now - self._full_poll_at >= POLL_INTERVAL_S
        after = 0 if is_full_poll else self._newest - _ID_OVERLAP
        in_progress = {id for id in list(self._in_progress) if id > after}
        with self._database.connect() as conn:
            pending = peer_messages.pending(conn, self._owner, room, exclude=self._skipped | in_progress, after=after)
        self._full_poll_at = now if is_full_poll else self._full_poll_at
        self._is_full = len(pending) >= room
        submitted = 0
        for message in pending:
            if message.id in self._in_progress:
                continue
            try:
                job_event, done = decode(message).with_future()
            except Exception as error:  # noqa: BLE001 - it may hold anything
                self._skipped.add(message.id)
                log.warning("peer_message.undecodable", message_id=message.id, job=message.job_id, error=repr(error))
                continue
            self._in_progress.add(message.id)
            self._newest = max(self._newest, message.id)
            done.add_done_callback(partial(self._recorded, message.id))
            self._submit(job_event)
            submitted += 1
        return submitted

    def _recorded(self, id: int, done: Future[None]) -> None:
        if done.exception() is not None:
            self._skipped.add(id)
        self._in_progress.discard(id)
        if self._is_full and len(self._in_progress) < _BATCH_SIZE:
            self._is_full = False
            self._on_capacity()


def _event(data: Mapping[str, Any]) -> events.Event:
    values = {name: value for name, value in data.items() if name != "kind"}
    if "phase" in values:
        values["phase"] = NodePhase(values["phase"])
    event: events.Event = _SENT_EVENTS[data["kind"]](**values)
    return event


def _note(data: Mapping[str, Any]) -> TimelineEntry:
    if data["kind"] not in TIMELINE_KINDS:
        raise ValueError(f"unknown kind of timeline entry: {data['kind']!r:.100}")
    return TimelineEntry(**{**data, "reason": Reason(data["reason"]) if data["reason"] else None})


def _checkpoint(data: Mapping[str, Any]) -> CheckpointReport:
    job, task, generation = data["key"]
    return CheckpointReport((job, task, generation), data["rank"], data["seq"], _note(data["note"]))
