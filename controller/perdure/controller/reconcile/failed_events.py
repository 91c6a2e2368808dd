"""What becomes of an event that cannot be recorded, although the database works.

It is tried again, each time after twice as long. An event that a node, a user or another controller sent is set aside
after a limited number of tries, because its content may be the cause: it is logged in full, the job's timeline says
so, and the job goes on. An event of the controller's own timers and calls is never set aside: the job depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from perdure.controller.reconcile.work_items import DescribeMachines, JobEvent, RetryIntent, TimedItem, WorkItem
from perdure.controller.store.records.intents import Intent
from perdure.recovery import events
from perdure.recovery.actions import TimelineEntry
from perdure.recovery.rules.backoff import delay

log = structlog.get_logger(__name__)

MAX_TRIES = 5
INITIAL_RETRY_S = 30.0
MAX_RETRY_S = 600.0
# Of an event's content in the log.
_MAX_LOGGED_CHARS = 4096
_SET_ASIDE = "event.set_aside"

_FROM_OUTSIDE = (
    events.NodeReported,
    events.PreemptionNotice,
    events.CheckpointDurable,
    events.CheckpointLoaded,
    events.CancelRequested,
    events.MachinesDescribed,
)


class EventSetAside(Exception):
    """The event could not be recorded, and is not tried again."""


class FailedEvents:
    """Schedules another try, or sets the event aside. For the reconcile thread.

    `retry_after(seconds, item)`: has the item handled again. `submit`: queues an event.
    """

    def __init__(self, retry_after: Callable[[float, TimedItem], None], submit: Callable[[JobEvent], object]) -> None:
        self._retry_after = retry_after
        self._submit = submit
        #: Events that were set aside since this process started.
        self.total_set_aside = 0
        self._unreadable: set[int] = set()

    def add(self, item: WorkItem | Intent, error: Exception) -> None:
        """Handle an item that could not be recorded or handled because of `error`."""
        match item:
            case JobEvent():
                self._add_event(item, error)
            case DescribeMachines(key):  # the sweep asks again
                log.error("item.failed", job=key[0], item=_shown(item), exc_info=error)
                item.done.set_exception(error)
            case RetryIntent(intent):
                self._retry_item(intent, error, job=intent.job_id)
            case Intent():
                self._retry_item(item, error, job=item.job_id)
            case _:
                self._retry_item(item, error, job=None)

    def add_unreadable(self, jobs: Mapping[int, Exception]) -> None:
        """Log claimed jobs whose rows cannot be decoded, each once. `JobOwnership` tries again at every tick."""
        for job_id, error in jobs.items():
            if job_id not in self._unreadable:
                log.error("job.unreadable", job=job_id, exc_info=error)
        self._unreadable.update(jobs)

    def _retry_item(self, item: TimedItem, error: Exception, *, job: int | None) -> None:
        log.error("item.failed", job=job, item=_shown(item), retry_in_s=INITIAL_RETRY_S, exc_info=error)
        self._retry_after(INITIAL_RETRY_S, item)

    def _add_event(self, event: JobEvent, error: Exception) -> None:
        failed = replace(event, failures=event.failures + 1)
        if failed.failures >= MAX_TRIES and _may_be_set_aside(failed):
            self._set_aside(failed, error)
            return
        retry_s = delay(failed.failures, INITIAL_RETRY_S, MAX_RETRY_S, str(event.job_id))
        log.error(
            "event.failed",
            job=event.job_id,
            event_repr=_shown(failed),
            failures=failed.failures,
            retry_in_s=round(retry_s),
            exc_info=error,
        )
        self._retry_after(retry_s, failed)

    def _set_aside(self, event: JobEvent, error: Exception) -> None:
        self.total_set_aside += 1
        log.error(_SET_ASIDE, job=event.job_id, event_repr=_shown(event), message_id=event.message_id, exc_info=error)
        if event.done is not None and not event.done.done():
            event.done.set_exception(EventSetAside(f"{type(error).__name__}: {error}"))
        if not any(note.kind == _SET_ASIDE for note in event.notes):
            what = type(event.event).__name__ if not isinstance(event.event, events.Tick) else "a timeline entry"
            self._submit(JobEvent(event.job_id, notes=(set_aside_entry(what, error),)))


def set_aside_entry(what: str, error: Exception) -> TimelineEntry:
    """The timeline entry for an event that was set aside."""
    message = f"{what} could not be recorded ({type(error).__name__}) and was set aside; the controller's log has it"
    return TimelineEntry(_SET_ASIDE, message=message)


def _may_be_set_aside(event: JobEvent) -> bool:
    is_from_outside = isinstance(event.event, _FROM_OUTSIDE) or bool(event.notes) or event.checkpoint is not None
    return is_from_outside and event.performed is None


def _shown(item: object) -> str:
    if isinstance(item, JobEvent):
        item = (item.event, item.checkpoint, item.notes)
    return repr(item)[:_MAX_LOGGED_CHARS]
