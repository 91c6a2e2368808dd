"""A job's timeline as table rows and log lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from perdure.cli.output import text
from perdure.sdk.connection import api_types

Places = Mapping[tuple[int | None, int | None], str]


def places(attempts: Sequence[api_types.Attempt]) -> Places:
    """The place of each attempt, by task index and generation."""
    return {(attempt["task_index"], attempt["generation"]): text.where(attempt) for attempt in attempts}


def row(entry: api_types.TimelineEntry, began: float, where: Places) -> list[str]:
    """One entry as a row: time since the job's submission, local time, attempt, task, event, place, details."""
    generation = entry["generation"]
    attempt = "" if generation is None else str(generation)
    if generation is not None and entry["rank"] is not None:
        attempt += f".{entry['rank']}"
    return [
        "+" + text.duration(text.to_epoch(entry["at"]) - began),
        text.local_time(entry["at"]),
        attempt,
        "" if entry["task_index"] is None else str(entry["task_index"]),
        text.one_line(entry["kind"]),
        where.get((entry["task_index"], generation), ""),
        text.one_line(_details(entry)),
    ]


def _details(entry: api_types.TimelineEntry) -> str:
    cause = ": ".join(part for part in (entry["reason"], entry["message"]) if part)
    extra = "; ".join(_extra_details(entry))
    return f"{cause} ({extra})" if cause and extra else cause or extra


def _extra_details(entry: api_types.TimelineEntry) -> Iterator[str]:
    """Details of an entry besides its reason and message."""
    data = entry["data"]
    if "step" in data:
        yield f"step {data['step']}"
    if entry["kind"] in ("attempt.requested", "attempt.refused") and "offer" in data:
        yield str(data["offer"])
    if entry["kind"] in ("attempt.refused", "task.waiting") and isinstance(until := data.get("until"), int | float):
        yield f"not before {datetime.fromtimestamp(until):%H:%M:%S}"  # local time, as in all of this output


def refusal_code(attempt: api_types.Attempt, timeline: Sequence[api_types.TimelineEntry]) -> str:
    """The cloud's error code if it refused this attempt, else an empty string."""
    key = (attempt["task_index"], attempt["generation"])
    refusals = (e for e in timeline if e["kind"] == "attempt.refused" and (e["task_index"], e["generation"]) == key)
    return next((str(entry["data"].get("code") or "refused") for entry in refusals), "")


def line(entry: api_types.TimelineEntry, where: Places) -> str:
    """One entry as a log line."""
    _, at, attempt, task, *rest = row(entry, text.to_epoch(entry["at"]), where)
    words = [at, f"[task {task}]" if task not in ("", "0") else "", f"[attempt {attempt}]" if attempt else "", *rest]
    return "  ".join(word for word in words if word)
