"""Reports checkpoints to the node's agent: one JSON line each in `$PERDURE_RUN_DIR/checkpoints.jsonl`.

A line has `step`, `state`, `path`, `at` (epoch seconds) and, where they are known, `total_steps`, `directory`, `files`
and `versions` (of the files, as `file_version` describes). The library appends `committed` and `loaded` lines. The
agent, which watches the uploads, appends the `durable` ones (its `storage.checkpoint_journal`).

Without an agent there is no such directory, and nothing is written. A line that cannot be written does not stop
training.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from perdure.checkpoint.durability.file_version import FileVersion
from perdure.checkpoint.preemption import run_dir

logger = logging.getLogger("perdure.checkpoint")

COMMITTED = "committed"
DURABLE = "durable"
LOADED = "loaded"

_total_steps: int | None = None


def set_total_steps(total_steps: int) -> None:
    """From now on every line says how many steps this program takes in all."""
    global _total_steps  # noqa: PLW0603 - a process has one program
    _total_steps = total_steps


def record(
    step: int, state: str, path: str, *, directory: str = "", files: Mapping[str, FileVersion | None] | None = None
) -> None:
    """Append one line; whole or not at all, also with several processes.

    `path`: the checkpoint's manifest, or its folder for a loaded one. `files`: its data files, relative to `directory`,
    each with the content that was committed (None: its name is never used twice); the agent waits until the bucket has
    them.
    """
    run_directory = run_dir()
    if run_directory is None:
        return
    fields: dict[str, Any] = {"step": step, "state": state, "path": path, "at": time.time()}
    if files:
        fields.update(directory=directory, files=list(files), versions=list(files.values()))
    if _total_steps is not None:
        fields["total_steps"] = _total_steps
    line = json.dumps(fields) + "\n"
    try:
        descriptor = os.open(
            os.path.join(run_directory, "checkpoints.jsonl"),
            os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC,
            0o644,
        )
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        logger.debug("noting that step %d is %s: %s", step, state, error)
