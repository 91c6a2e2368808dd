"""Queues notifications in the transaction that records what they tell of.

So an event is queued if and only if it is recorded, and once for each channel. `maintenance.notify` sends them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from sqlalchemy import Connection, bindparam, select

from perdure.controller.reconcile.recorder import Decision
from perdure.controller.runtime.config.notify_config import CALLBACK, NotifyConfig
from perdure.controller.store.records import notifications
from perdure.controller.store.records.jobs import Job, Task
from perdure.recovery.actions import TimelineEntry
from perdure.recovery.job import JobView, TaskView
from perdure.recovery.reasons import PREEMPTIONS
from perdure.recovery.statuses import Status
from perdure.sdk.notify.events import DEFAULT_EVENTS

BODY_VERSION = 1
_TASKS = (
    select(
        Job.c.id.label("job_id"),
        Job.c.name.label("job_name"),
        Job.c.user,
        Job.c.service_id,
        Job.c.cluster_id,
        Job.c.cluster_job,
        Task.c.index.label("task_index"),
        Task.c.name.label("task_name"),
        Task.c.task_id,
        Task.c.spec["notify"].label("notify"),
        Task.c.spec["event_callback"].as_string().label("event_callback"),
    )
    .join(Task, Task.c.job_id == Job.c.id)
    .where(Job.c.id.in_(bindparam("job_ids", expanding=True)))
)
# Users do not know the jobs that hold the machines of clusters, so only these events of theirs are sent, in this way.
_CLUSTER_KINDS = {
    "job.preempted": "cluster.preempted",
    "job.interrupted": "cluster.preempted",
    "job.recovered": "cluster.recovered",
}
# Entries of the timeline that are events as they stand.
_KINDS = {
    "node.notice": "job.notice",
    "task.waiting": "job.waiting",
    "task.deadline_missed_forecast": "job.late",
    "task.stuck": "job.stuck",
    "task.budget_warning": "job.budget_warning",
    "attempt.failed": "job.restarting",
    "job.cancel": "job.cancelling",
    "task.ended": "task.ended",
}
# SkyPilot's JOB_STATUS for each event of a task's `event_callback`. `task.ended` has the task's status.
CALLBACK_STATUSES: Mapping[str, tuple[str, ...]] = {
    "job.starting": ("SUBMITTED", "STARTING"),
    "job.started": ("STARTED",),
    "job.preempted": ("RECOVERING",),
    "job.interrupted": ("RECOVERING",),
    "job.restarting": ("RECOVERING",),
    "job.recovered": ("RECOVERED",),
    "job.cancelling": ("CANCELLING",),
    "task.ended": (),
}


@dataclass(frozen=True)
class JobNews:
    """An event of a job. `entry`: of the timeline, for the details."""

    kind: str
    task: TaskView
    entry: TimelineEntry


@dataclass(frozen=True)
class NotificationOutbox:
    """`wake` is called after a transaction that has queued something. `controller`: the id of this installation."""

    config: NotifyConfig
    controller: str
    wake: Callable[[], None] = lambda: None

    def record(self, conn: Connection, decisions: Sequence[Decision], now: float) -> bool:
        """Queue the events of these decisions. Returns whether there were any."""
        news = [(d.step.job, item) for d in decisions for item in news_of(d)]
        if not news or not (self.config.channels or self.config.runs_callbacks):
            return False
        tasks = conn.execute(_TASKS, {"job_ids": sorted({job.id for job, _ in news})})
        known = {(row.job_id, row.task_index): row for row in tasks}
        rows: list[dict[str, Any]] = []
        for number, (job, item) in enumerate(news):
            if (row := known.get((job.id, item.task.index))) is None:
                continue
            kind = _kind_for(item, row)
            if kind is None:
                continue
            body = self._body(job, replace(item, kind=kind), row, now, number)
            channels = self._channels(kind, row)
            columns = {"event_id": body["id"], "kind": kind, "job_id": job.id, "at": now, "body": body}
            rows += [{**columns, "channel": channel} for channel in channels]
        notifications.add_all(conn, rows)
        return bool(rows)

    def _channels(self, kind: str, row: Any) -> list[str]:
        """Where the event goes: by the rules, by the task, and to the task's own callback.

        Of a replica, only to the last: its service has events of its own (`maintenance.serve.timeline`).
        """
        rules = self.config.rules if row.service_id is None else ()
        channels = dict.fromkeys(
            channel for rule in rules if rule.matches(kind, user=row.user, name=row.job_name) for channel in rule.to
        )
        own = (row.notify if row.service_id is None else None) or {}
        if any(fnmatchcase(kind, pattern) for pattern in own.get("when") or DEFAULT_EVENTS):
            channels |= dict.fromkeys(channel for channel in own.get("to", ()) if channel in self.config.channels)
        if row.event_callback and self.config.runs_callbacks and kind in CALLBACK_STATUSES:
            channels[CALLBACK] = None
        return list(channels)

    def _body(self, job: JobView, item: JobNews, row: Any, now: float, number: int) -> dict[str, Any]:
        task, entry = item.task, item.entry
        attempt = task.attempt(entry.generation) if entry.generation is not None else task.current
        offer = attempt.offer if attempt else task.last_offer
        identity = (
            f"{self.controller}/{job.id}/{task.index}/{entry.generation}/{entry.rank}/{item.kind}/{now!r}/{number}"
        )
        return {
            "id": f"evt_{hashlib.sha256(identity.encode()).hexdigest()[:24]}",
            "type": item.kind,
            "version": BODY_VERSION,
            "timestamp": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "data": {
                "job_id": job.id,
                "job_name": row.job_name,
                "user": row.user,
                "task": task.index,
                "task_name": row.task_name,
                "task_id": row.task_id,
                "num_tasks": len(job.tasks),
                "status": task.status.value,
                "reason": entry.reason.value if entry.reason else None,
                "message": entry.message,
                "attempt": entry.generation,
                "node": entry.rank,
                "place": offer.name if offer else None,
                "recovery_count": task.recovery_count,
                "details": entry.data,
            },
        }


def _kind_for(item: JobNews, row: Any) -> str | None:
    """The event as its user knows it; None if it is none of theirs."""
    if row.cluster_id is None or row.cluster_job is not None:
        return item.kind
    return _CLUSTER_KINDS.get(item.kind) if item.task.has_run else None


def news_of(decision: Decision) -> Iterator[JobNews]:
    """The events in what was decided, in their order. Pure."""
    before, after = decision.owned.view, decision.step.job
    entries = (a for a in (*decision.event.notes, *decision.step.actions) if isinstance(a, TimelineEntry))
    for entry in entries:
        index = entry.task if entry.task is not None else (before.current_task or before.tasks[-1]).index
        if (kind := _kind(entry, before.tasks[index])) is not None:
            yield JobNews(kind, after.tasks[index], entry)
    if after.has_ended and not before.has_ended:
        yield _end_of(after)


def _kind(entry: TimelineEntry, before: TaskView) -> str | None:
    match entry.kind:
        case "attempt.requested":
            return "job.starting" if entry.generation == 1 else None
        case "attempt.running":
            return "job.recovered" if before.has_run else "job.started"
        case "attempt.lost":
            return "job.preempted" if entry.reason in PREEMPTIONS else "job.interrupted"
    return _KINDS.get(entry.kind)


def _end_of(job: JobView) -> JobNews:
    """The end of the whole job, told by the task that decided it."""
    failed = next((task for task in job.tasks if task.status.is_failed), None)
    cancelled = next((task for task in job.tasks if task.status is Status.CANCELLED), None)
    task = failed or cancelled or job.tasks[-1]
    kind = "job.failed" if failed else "job.cancelled" if cancelled else "job.succeeded"
    return JobNews(kind, task, TimelineEntry("task.ended", task.index, reason=task.outcome, message=task.message))
