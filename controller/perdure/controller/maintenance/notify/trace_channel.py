"""Sends the trace of a job that has ended to a collector of OpenTelemetry, by OTLP over HTTP.

The trace is made when it is sent, so the machines of a job may end later than its trace says.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from sqlalchemy import Engine

from perdure.controller.maintenance.notify.channel_protocol import Delivered, Message, NotDelivered
from perdure.controller.maintenance.notify.guarded_post import GuardedPost
from perdure.controller.runtime.clock import Clock
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.queries import job_listing
from perdure.sdk.connection import api_types
from perdure.sdk.notify.events import JOB_ENDS
from perdure.sdk.notify.traces import job_trace

BATCH_SIZE = 50
"""Jobs in one request: collectors limit its size."""


@dataclass(frozen=True)
class TraceChannel:
    """`headers`: sent with each request, such as the key of a service. `clock`: of the database's times."""

    post: GuardedPost
    database: Engine
    clock: Clock
    version: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def deliver(self, message: Message) -> Delivered | NotDelivered:
        ids = list(_job_ids(message))
        if not ids and message.kind != "test":
            return Delivered("no job of this message has ended")
        result: Delivered | NotDelivered = Delivered()
        for start in range(0, max(1, len(ids)), BATCH_SIZE):  # spans that are sent again have the same ids
            result = self._send(ids[start : start + BATCH_SIZE])
            if isinstance(result, NotDelivered):
                break
        return result

    def _send(self, job_ids: Sequence[int]) -> Delivered | NotDelivered:
        try:
            jobs = [job for id in job_ids if (job := self._job(id)) is not None]
        except UNAVAILABLE as error:
            return NotDelivered(f"the database is unavailable: {error}")
        spans = [part for job in jobs for part in job_trace(job, version=self.version)["resourceSpans"]]
        body = gzip.compress(json.dumps({"resourceSpans": spans}, separators=(",", ":")).encode(), 1)
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        return self.post.send(body, {**headers, **self.headers})

    def _job(self, job_id: int) -> api_types.JobDetail | None:
        """A job with all that its page shows. Raises what the database raises."""
        now = self.clock.now()
        with self.database.connect() as conn:
            tasks = job_listing.describe(conn, [job_id], now)
            if not tasks:
                return None
            attempts, timeline = job_listing.attempts_of(conn, job_id, now), job_listing.timeline(conn, job_id)
        current = next((task for task in tasks if task["status"] != "SUCCEEDED"), tasks[-1])
        whole = {**current, "now": job_listing.iso(now), "tasks": tasks, "attempts": attempts, "timeline": timeline}
        return cast("api_types.JobDetail", whole)


def _job_ids(message: Message) -> Iterable[int]:
    """The jobs that have ended, by a message about one event or about several."""
    events: Iterable[Mapping[str, Any]] = [message.body]
    if message.kind == "digest":
        events = message.body["data"]["events"]
    return dict.fromkeys(int(event["data"]["job_id"]) for event in events if event.get("type") in JOB_ENDS)
