"""A job's life as a trace of OpenTelemetry, in OTLP's JSON: the job, its tasks and attempts, and what each attempt did.

Ids are made from the job's task ID, so the same job has the same trace wherever and however often it is made. Format:
opentelemetry.io/docs/specs/otlp, "JSON Protobuf Encoding" (ids in hexadecimal, 64-bit integers as text).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from perdure.sdk.connection import api_types

MAX_EVENTS = 5_000
"""Of a trace: collectors limit the size of a request. The newest are kept, and the number of the others is stated."""
_INTERNAL, _OK, _ERROR = 1, 1, 2  # SpanKind and StatusCode
_MAX_TEXT = 1_000

Span = dict[str, Any]


def job_trace(job: api_types.JobDetail, *, version: str = "") -> dict[str, Any]:
    """The body of a request to `/v1/traces`, or the contents of a file that the Collector's `otlpjson` receivers read.
    What has not ended ends now."""
    resource = _attributes({"service.name": "perdure", "service.version": version})
    scope = {"name": "perdure", "version": version}
    spans = list(_spans(job))
    return {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [{"scope": scope, "spans": spans}]}]}


def trace_id(job: api_types.JobDetail) -> str:
    """32 hexadecimal digits, which any controller makes for this job and for no other."""
    return _digest(_identity(job), 32)


def _identity(job: api_types.JobDetail) -> str:
    tasks = job.get("tasks") or [job]
    return f"perdure/{job['job_id']}/{tasks[0]['task_id']}"


def _spans(job: api_types.JobDetail) -> Iterator[Span]:
    now = _nanos(job["now"])
    tasks = job.get("tasks") or [job]
    timeline = job["timeline"][-MAX_EVENTS:]
    ends = [task["ended_at"] for task in tasks]
    ended = None if None in ends else max(filter(None, ends))
    root = _span(job, "job", None, f"job {job['name']}", job["submitted_at"], ended, now)
    root["attributes"] = _attributes(
        {
            "perdure.job.id": job["job_id"],
            "perdure.job.name": job["name"],
            "enduser.id": job["user"],
            "perdure.status": job["status"],
            "perdure.recoveries": sum(task["recovery_count"] for task in tasks),
            "perdure.cost_usd": sum(task["cost_usd"] for task in tasks),
            "perdure.on_demand_cost_usd": sum(task["on_demand_cost_usd"] for task in tasks),
        }
    )
    root["status"] = _status(job["status"], job["message"])
    root["events"] = [_event(entry) for entry in timeline if entry["generation"] is None]
    root["droppedEventsCount"] = len(job["timeline"]) - len(timeline)
    yield root
    for task in tasks:
        parent = root
        if len(tasks) > 1 and task["started_at"] is not None:
            name = f"task {task['task_name'] or task['task_index']}"
            parent = _span(job, f"task/{task['task_index']}", root, name, task["started_at"], task["ended_at"], now)
            parent["attributes"] = _attributes({"perdure.task": task["task_index"], "perdure.status": task["status"]})
            parent["status"] = _status(task["status"], task["message"])
            yield parent
        for attempt in job["attempts"]:
            if attempt["task_index"] == task["task_index"]:
                yield from _of_attempt(job, attempt, parent, timeline, now)


def _of_attempt(
    job: api_types.JobDetail,
    attempt: api_types.Attempt,
    parent: Span,
    timeline: Sequence[api_types.TimelineEntry],
    now: int,
) -> Iterator[Span]:
    """The span of an attempt, and those of what it did."""
    key = (attempt["task_index"], attempt["generation"])
    own = [entry for entry in timeline if (entry["task_index"], entry["generation"]) == key]
    refused = next((entry["at"] for entry in own if entry["kind"] in ("attempt.refused", "attempt.withdrawn")), None)
    ended = attempt["gone_at"] or refused
    path = f"attempt/{key[0]}/{key[1]}"
    span = _span(job, path, parent, f"attempt {attempt['generation']}", attempt["requested_at"], ended, now)
    span["attributes"] = _attributes(
        {
            "perdure.attempt": attempt["generation"],
            "cloud.provider": attempt["cloud"],
            "cloud.region": attempt["region"],
            "cloud.availability_zone": attempt["zone"],
            "host.type": attempt["instance_type"],
            "perdure.market": attempt["market"],
            "perdure.price_per_hour": attempt["price_per_hour"],
            "perdure.cost_usd": attempt["cost_usd"],
            "perdure.nodes": len(attempt["nodes"]),
            "perdure.reason": attempt["reason"] or "",
        }
    )
    span["events"] = [_event(entry) for entry in own]
    yield span
    for name, began, end in _phases(attempt, own, ended):
        yield _span(job, f"{path}/{name}", span, name, began, end, now)


def _phases(
    attempt: api_types.Attempt, own: Iterable[api_types.TimelineEntry], ended: str | None
) -> Iterator[tuple[str, str, str | None]]:
    """Name, beginning and end (None: not yet) of what an attempt did, one after the other."""
    first: dict[str, str] = {}
    for entry in own:
        first.setdefault(entry["kind"], entry["at"])
    begins = (
        ("launch", attempt["requested_at"]),
        ("boot", first.get("attempt.launched")),
        ("setup", first.get("attempt.setting_up")),
        ("run", attempt["running_at"]),
    )
    known = [(name, at) for name, at in begins if at is not None]
    stops = [at for at in (first.get("attempt.lost"), attempt["stopped_at"], ended) if at is not None]
    stop = min(stops) if stops else None
    for (name, at), (_, until) in zip(known, [*known[1:], ("", stop)], strict=True):
        yield name, at, until
    if stop is not None and attempt["gone_at"] is not None:
        yield "stop", stop, attempt["gone_at"]


def _span(
    job: api_types.JobDetail, path: str, parent: Span | None, name: str, began: str, ended: str | None, now: int
) -> Span:
    start = _nanos(began)
    end = max(start, now if ended is None else _nanos(ended))
    return {
        "traceId": trace_id(job),
        "spanId": _digest(f"{_identity(job)}/{path}", 16),
        **({"parentSpanId": parent["spanId"]} if parent else {}),
        "name": name[:_MAX_TEXT],
        "kind": _INTERNAL,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(end),
    }


def _event(entry: api_types.TimelineEntry) -> dict[str, Any]:
    data = entry["data"]
    facts = {
        "message": entry["message"],
        "reason": entry["reason"] or "",
        "node": "" if entry["rank"] is None else entry["rank"],
        "step": data.get("step", ""),
    }
    return {
        "name": entry["kind"],
        "timeUnixNano": str(_nanos(entry["at"])),
        "attributes": _attributes({name: value for name, value in facts.items() if value != ""}),
    }


def _status(status: str, message: str | None) -> dict[str, Any]:
    if status == "SUCCEEDED":
        return {"code": _OK}
    return {"code": _ERROR, "message": (message or status)[:_MAX_TEXT]} if status.startswith("FAILED") else {}


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value is not None]


def _value(value: object) -> dict[str, Any]:
    if isinstance(value, int) and not isinstance(value, bool):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": str(value)[:_MAX_TEXT]}


def _nanos(iso: str) -> int:
    """Epoch nanoseconds, exact to a microsecond."""
    at = datetime.fromisoformat(iso)
    return int(at.timestamp()) * 10**9 + at.microsecond * 1000


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
