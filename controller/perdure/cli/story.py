"""A job's timeline as lines: when, what, where, why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from perdure.cli import text
from perdure.sdk import records

Places = Mapping[tuple[int | None, int | None], str]


def places(attempts: Sequence[records.Attempt]) -> Places:
    """Where each attempt was, by task index and generation."""
    return {(attempt["task_index"], attempt["generation"]): text.where(attempt) for attempt in attempts}


def row(entry: records.TimelineEntry, began: float, where: Places) -> list[str]:
    """One entry: since the job's begin, local time, attempt, task, kind, place, and what is to be said about it."""
    generation = entry["generation"]
    attempt = "" if generation is None else str(generation)
    if generation is not None and entry["rank"] is not None:
        attempt += f".{entry['rank']}"
    return [
        "+" + text.duration(text.epoch(entry["at"]) - began),
        text.local_time(entry["at"]),
        attempt,
        "" if entry["task_index"] is None else str(entry["task_index"]),
        entry["kind"],
        where.get((entry["task_index"], generation), ""),
        _what_is_said(entry),
    ]


def _what_is_said(entry: records.TimelineEntry) -> str:
    words = ": ".join(part for part in (entry["reason"], entry["message"]) if part)
    details = "; ".join(_details(entry))
    return f"{words} ({details})" if words and details else words or details


def _details(entry: records.TimelineEntry) -> Iterator[str]:
    """What an entry knows beside its reason and message."""
    data = entry["data"]
    if "step" in data:
        yield f"step {data['step']}"
    if entry["kind"] in ("attempt.requested", "attempt.refused") and "offer" in data:
        yield str(data["offer"])
    if entry["kind"] in ("attempt.refused", "task.waiting") and isinstance(until := data.get("until"), int | float):
        yield f"not before {datetime.fromtimestamp(until):%H:%M:%S}"  # local time, as everywhere here


def refused(attempt: records.Attempt, timeline: Sequence[records.TimelineEntry]) -> str:
    """The cloud's code if it refused this attempt, else nothing."""
    key = (attempt["task_index"], attempt["generation"])
    said = (e for e in timeline if e["kind"] == "attempt.refused" and (e["task_index"], e["generation"]) == key)
    return next((str(entry["data"].get("code") or "refused") for entry in said), "")


def line(entry: records.TimelineEntry, where: Places) -> str:
    """One entry as a line of a log."""
    _, at, attempt, task, *rest = row(entry, text.epoch(entry["at"]), where)
    words = [at, f"[task {task}]" if task not in ("", "0") else "", f"[attempt {attempt}]" if attempt else "", *rest]
    return "  ".join(word for word in words if word)
