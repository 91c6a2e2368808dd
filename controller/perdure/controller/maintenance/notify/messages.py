"""Events as messages: single ones, and digests."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from perdure.controller.maintenance.notify.channel_protocol import Message
from perdure.controller.store.records.notifications import Notification

_EXAMPLES = 3
_TITLES = {
    "job.starting": "starting",
    "job.started": "started",
    "job.notice": "has a preemption notice",
    "job.preempted": "was preempted",
    "job.interrupted": "was interrupted",
    "job.restarting": "restarts",
    "job.recovered": "runs again",
    "job.waiting": "waits for machines",
    "job.late": "will miss its deadline",
    "job.stuck": "is stuck",
    "job.budget_warning": "has spent most of its budget",
    "cluster.preempted": "has lost its machines",
    "cluster.recovered": "has machines again",
    "service.ready": "is ready",
    "service.failed": "cannot start",
    "service.update_failed": "keeps its earlier version: the new one has failed",
    "service.replica_preempted": "has lost a replica to a preemption",
    "service.replica_failed": "has a replica that failed",
    "user.budget_warning": "has spent most of the budget of this month",
    "user.budget_spent": "has spent the budget of this month",
    "job.cancelling": "is being cancelled",
    "job.succeeded": "succeeded",
    "job.failed": "failed",
    "job.cancelled": "was cancelled",
    "task.ended": "ended a task",
}


def single(notification: Notification) -> Message:
    """The message of one event. Its id is the event's, for every channel and every try."""
    body = notification.body
    title = title_of(body)
    data = body.get("data", {})
    return Message(notification.event_id, notification.kind, title, _text(body), body, thread=_thread(data))


def title_of(body: dict[str, Any]) -> str:
    data = body.get("data", {})
    what = _TITLES.get(str(body.get("type")), str(body.get("type")))
    if _is_of_user(body):
        return f"User {data.get('user')} {what}"
    if _is_of_service(body):
        return f"Service {data.get('service')} {what}"
    if _is_of_cluster(body):
        return f"Cluster {data.get('job_name')} {what}"
    return f"Job {data.get('job_id')} ({data.get('job_name')}) {what}"


def _is_of_user(body: dict[str, Any]) -> bool:
    return str(body.get("type")).startswith("user.")


def _is_of_service(body: dict[str, Any]) -> bool:
    return str(body.get("type")).startswith("service.")


def _is_of_cluster(body: dict[str, Any]) -> bool:
    return str(body.get("type")).startswith("cluster.")


def _thread(data: dict[str, Any]) -> str:
    if data.get("service_id"):
        return f"service-{data['service_id']}"
    return f"job-{data['job_id']}" if data.get("job_id") else f"user-{data.get('user', '')}"


def digest(notifications: Sequence[Notification]) -> Message:
    """One message for several events. It names each of them by its id, so that a receiver can count them once."""
    kinds = Counter(n.kind for n in notifications)
    counted = ", ".join(f"{number} × {kind}" for kind, number in kinds.most_common())
    title = f"{len(notifications)} events of Perdure: {counted}"
    examples = "\n".join(f"- {title_of(n.body)}" for n in notifications[:_EXAMPLES])
    more = len(notifications) - _EXAMPLES
    text = f"{examples}\nand {more} more; see `perdure jobs queue`" if more > 0 else examples
    ids = "".join(n.event_id for n in notifications)
    message_id = f"digest_{hashlib.sha256(ids.encode()).hexdigest()[:24]}"
    body = {
        "id": message_id,
        "type": "digest",
        "version": 1,
        "timestamp": notifications[-1].body.get("timestamp"),
        "data": {"counts": dict(kinds), "events": [n.body for n in notifications]},
    }
    return Message(message_id, "digest", title, text, body)


def _text(body: dict[str, Any]) -> str:
    data = body.get("data", {})
    lines = [str(data.get("message") or "").strip()]
    for name, field in (("status", "status"), ("reason", "reason"), ("where", "place"), ("user", "user")):
        if data.get(field):
            lines.append(f"{name}: {data[field]}")
    if data.get("recovery_count"):
        lines.append(f"recoveries: {data['recovery_count']}")
    lines.append(_command(body))
    return "\n".join(line for line in lines if line)


def _command(body: dict[str, Any]) -> str:
    """What shows more."""
    data = body.get("data", {})
    if _is_of_user(body):
        return "perdure users list"
    if _is_of_service(body):
        return f"perdure serve logs {data.get('service')} --controller"
    if _is_of_cluster(body):
        return f"perdure queue {data.get('job_name')}"
    return f"perdure jobs show {data.get('job_id')}"
