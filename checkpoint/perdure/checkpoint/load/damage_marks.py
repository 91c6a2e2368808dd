"""Marks on checkpoints that were found damaged, so that they are not read again in vain and do not count in retention.

`verify` and `ranks.agreed_load` set marks. A mark removes nothing, and is valid only as long as the files are
unchanged: a checkpoint that was repaired, or that a stale listing had shown as damaged, is read again.

A mark is the file `.perdure/<manifest's name>.damaged`: JSON with the reason, and the size and time of every file when
the damage was found.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from typing import Any

from perdure.checkpoint.format import manifest
from perdure.checkpoint.format.regular_file import open_regular
from perdure.checkpoint.load import directory_cache
from perdure.checkpoint.load.saved_step import Checkpoint

logger = logging.getLogger("perdure.checkpoint")


def mark(checkpoint: Checkpoint, reason: str) -> None:
    """Record that `checkpoint` was read and is damaged. A mark that cannot be written is only logged."""
    directory_cache.for_directory(checkpoint.root).mark_damaged(checkpoint)
    try:
        content = json.dumps({"reason": reason, "files": _stamps(checkpoint)})
        path = _path(checkpoint)
        if path is None:
            return
        temporary = f"{path}.tmp-{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError as error:
        logger.debug("marking step %d in %s as damaged: %s", checkpoint.step, checkpoint.root, error)


def unmark(checkpoint: Checkpoint) -> None:
    """Remove the mark: `checkpoint` was read and is whole."""
    directory_cache.for_directory(checkpoint.root).mark_whole(checkpoint)
    path = _path(checkpoint)
    if path is not None:
        with contextlib.suppress(OSError):
            os.unlink(path)


def current_mark(checkpoint: Checkpoint) -> str | None:
    """The reason in the mark of `checkpoint`; None if it has none, or its files have changed since."""
    path = _path(checkpoint)
    if path is None:
        return None
    try:
        with open_regular(path) as file:
            content = json.loads(file.readall())
        if content["files"] != _stamps(checkpoint):
            return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    directory_cache.for_directory(checkpoint.root).mark_damaged(checkpoint)
    return str(content["reason"])


def _path(checkpoint: Checkpoint) -> str | None:
    return (
        manifest.path_of(checkpoint.root, checkpoint.manifests[-1].name + manifest.DAMAGED_SUFFIX)
        if checkpoint.manifests
        else None
    )


def _stamps(checkpoint: Checkpoint) -> dict[str, Any]:
    return {path: _stamp(os.path.join(checkpoint.root, path)) for path in sorted(checkpoint.files)}


def _stamp(path: str) -> list[int] | None:
    try:
        now = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return [now.st_size, now.st_mtime_ns]
