"""What happens to services: entries of their timelines, and notifications, queued in the transaction of the change."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from sqlalchemy import Connection, Row

from perdure.controller.maintenance.serve.reader import ReadService
from perdure.controller.runtime.config.notify_config import NotifyConfig
from perdure.controller.store.records import notifications
from perdure.controller.store.services import events
from perdure.recovery.market.services.replicas import FAILURES, Replica, ReplicaStatus
from perdure.sdk.notify.events import DEFAULT_EVENTS, EVENTS

KINDS: Mapping[str, str] = {
    "service.started": "`serve up`",
    "service.updated": "`serve update`",
    "service.down": "`serve down`",
    "service.scaled": "the load asks for another number of replicas",
    "service.taken_over": "another controller decides about it now, and runs its proxy",
    "service.ready": "a replica of a version is ready for the first time",
    "service.failed": "it cannot start: a replica has failed before any was ready",
    "service.update_failed": "a new version has failed before it was ready, and the earlier one goes on",
    "service.certificate_issued": "its endpoint has a new certificate, got by ACME",
    "service.certificate_failed": "a certificate could not be got by ACME; it is tried again",
    "service.replica_launched": "a replica is launched",
    "service.replica_changed": "a replica gets another version on its machine",
    "service.replica_ready": "a replica is ready for the first time",
    "service.replica_preempted": "a replica has lost its machine",
    "service.replica_failed": "a replica has ended by its own fault, or was given up",
    "service.replica_ended": "a replica was not needed any more",
}
"""The kinds of entries. Those that are also in `perdure.sdk.notify.events` are notifications."""


_ENDS = {
    ReplicaStatus.PREEMPTED: "service.replica_preempted",
    ReplicaStatus.TERMINATED: "service.replica_ended",
}


@dataclass(frozen=True)
class ServiceTimeline:
    """`controller`: the id of this installation. `wake`: called after something was queued. `config_of`: the task of a
    version."""

    config: NotifyConfig
    controller: str
    wake: Callable[[], None]
    config_of: Callable[[Row[Any]], Mapping[str, Any]] = lambda _version: {}

    def record(
        self,
        conn: Connection,
        service: ReadService,
        kind: str,
        now: float,
        *,
        version: int | None = None,
        replica: int | None = None,
        message: str = "",
    ) -> None:
        """Write an entry, and queue what users want to be told, at most once for each channel."""
        assert kind in KINDS, kind
        row = service.row
        events.add(conn, row.id, kind, now, version=version, replica=replica, message=message)
        if kind not in EVENTS or not self.config.channels:
            return
        channels = self._channels(kind, row, self.config_of(service.newest).get("notify"))
        if not channels:
            return
        identity = f"{self.controller}/service/{row.id}/{kind}/{version}/{replica}"
        body = {
            "id": f"evt_{hashlib.sha256(identity.encode()).hexdigest()[:24]}",
            "type": kind,
            "version": 1,
            "timestamp": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "data": {
                "service": row.name,
                "service_id": row.id,
                "user": row.user,
                "service_version": version,
                "replica": replica,
                "message": message or EVENTS[kind],
            },
        }
        columns = {"event_id": body["id"], "kind": kind, "job_id": None, "at": now, "body": body}
        notifications.add_all(conn, [{**columns, "channel": channel} for channel in channels])
        self.wake()

    def record_end(
        self, conn: Connection, service: ReadService, view: Replica, status: ReplicaStatus, message: str, now: float
    ) -> None:
        """Record that a replica ends, and what that means for its service."""
        kind = _ENDS.get(status, "service.replica_failed")
        text = f"{status}: {message}" if message else str(status)
        self.record(conn, service, kind, now, version=view.version, replica=view.number, message=text)
        is_first = view.version == service.row.version and service.newest.ready_at is None and not service.failures
        if status in FAILURES and is_first:
            goes_on = any(one.view.is_ready for one in service.replicas if one.view.version != view.version)
            kind = "service.update_failed" if goes_on else "service.failed"
            self.record(conn, service, kind, now, version=view.version, message=text)

    def _channels(self, kind: str, service: Row[Any], given: Any) -> list[str]:
        """Where an event goes: by the rules, and by `notify` of the task."""
        own = given if isinstance(given, dict) else {"to": [given] if isinstance(given, str) else given or ()}
        rules = (rule for rule in self.config.rules if rule.matches(kind, user=service.user, name=service.name))
        channels = dict.fromkeys(channel for rule in rules for channel in rule.to)
        if any(fnmatchcase(kind, pattern) for pattern in own.get("when") or DEFAULT_EVENTS):
            channels |= dict.fromkeys(channel for channel in own.get("to", ()) if channel in self.config.channels)
        return list(channels)
