"""Tells the node's agent what became of checkpoints: one JSON line each in `$PERDURE_RUN_DIR/checkpoints.jsonl`.

Without an agent there is no such directory, and nothing is written. A line that can not be written is no reason to stop
training.
"""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any

from perdure.checkpoint.notice import run_dir

logger = logging.getLogger("perdure.checkpoint")

COMMITTED = "committed"
DURABLE = "durable"
LOADED = "loaded"

_total_steps: int | None = None


def expect(total_steps: int) -> None:
    """From now on every line says how many steps this program takes in all."""
    global _total_steps  # noqa: PLW0603 - a process has one program
    _total_steps = total_steps


def note(step: int, state: str, path: str) -> None:
    """Append one line; whole or not at all, also with several processes."""
    directory = run_dir()
    if directory is None:
        return
    said: dict[str, Any] = {"step": step, "state": state, "path": path, "at": time.time()}
    if _total_steps is not None:
        said["total_steps"] = _total_steps
    line = json.dumps(said) + "\n"
    try:
        descriptor = os.open(
            os.path.join(directory, "checkpoints.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
        )
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        logger.debug("noting that step %d is %s: %s", step, state, error)
