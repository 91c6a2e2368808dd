"""Tells the node's agent what became of checkpoints: one JSON line each in `$HOLDFAST_RUN_DIR/checkpoints.jsonl`.

Without an agent there is no such directory, and nothing is written. A line that can not be written is no reason to stop
training.
"""

from __future__ import annotations

import json
import logging
import os
import time

from holdfast.checkpoint.notice import run_dir

logger = logging.getLogger("holdfast.checkpoint")

COMMITTED = "committed"
DURABLE = "durable"
LOADED = "loaded"


def note(step: int, state: str, path: str) -> None:
    """Append one line; whole or not at all, also with several processes."""
    directory = run_dir()
    if directory is None:
        return
    line = json.dumps({"step": step, "state": state, "path": path, "at": time.time()}) + "\n"
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
