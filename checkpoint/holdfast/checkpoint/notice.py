"""Whether this machine is about to be taken: `notice.json` in the directory that the agent shares with the workload."""

from __future__ import annotations

import os
import time

_FRESH_S = 0.05  # how long an answer is good for, so that every training step may ask


def run_dir() -> str | None:
    """The directory that the agent shares with the workload, or None when no agent runs this process."""
    return os.environ.get("HOLDFAST_RUN_DIR") or None


class _Seen:
    """The last look: at which file, when (monotonic seconds), and whether it was there."""

    path = ""
    at_s = float("-inf")
    exists = False


_seen = _Seen()


def preempted() -> bool:
    """Whether the workload was asked to stop: save now, then leave. Cheap enough for every step; at most 50 ms old."""
    directory = run_dir()
    if directory is None:
        return False
    path, now_s = os.path.join(directory, "notice.json"), time.monotonic()
    if path != _seen.path or now_s - _seen.at_s > _FRESH_S:
        _seen.path, _seen.at_s, _seen.exists = path, now_s, os.path.exists(path)
    return _seen.exists


def deadline() -> float | None:
    """When the machine will be taken, in epoch seconds; None while no notice stands or where it names no time."""
    import json

    directory = run_dir()
    if directory is None:
        return None
    try:
        with open(os.path.join(directory, "notice.json"), encoding="utf-8") as file:
            value = json.load(file)["deadline"]
        return None if value is None else float(value)
    except (OSError, ValueError, TypeError, KeyError):
        return None
