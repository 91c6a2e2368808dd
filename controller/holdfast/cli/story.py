"""A job's timeline as lines: when, what, where, why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.cli import text
from holdfast.sdk import records

Places = Mapping[tuple[int | None, int | None], str]


def places(attempts: Sequence[records.Attempt]) -> Places:
    """Where each attempt was, by task index and generation."""
    return {(attempt["task_index"], attempt["generation"]): text.where(attempt) for attempt in attempts}


def row(entry: records.TimelineEntry, began: float, where: Places) -> list[str]:
    """One entry: since the job's begin, local time, attempt, kind, place, and what is to be said about it."""
    generation = entry["generation"]
    attempt = "" if generation is None else str(generation)
    if generation is not None and entry["rank"] is not None:
        attempt += f".{entry['rank']}"
    return [
        "+" + text.duration(text.epoch(entry["at"]) - began),
        text.local_time(entry["at"]),
        attempt,
        entry["kind"],
        where.get((entry["task_index"], generation), ""),
        ": ".join(part for part in (entry["reason"], entry["message"]) if part),
    ]


def line(entry: records.TimelineEntry, where: Places) -> str:
    """One entry as a line of a log."""
    words = row(entry, text.epoch(entry["at"]), where)[1:]
    words[1] = f"[attempt {words[1]}]" if words[1] else ""
    return "  ".join(word for word in words if word)
