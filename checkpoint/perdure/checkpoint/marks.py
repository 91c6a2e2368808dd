"""Checkpoints that were found damaged, written down so that nobody reads them again in vain and retention never counts
them. A mark removes nothing, and holds only as long as the files are as they were: one that was repaired, or that a
stale listing had shown short, is read again.

`.perdure/<manifest's name>.damaged`: JSON with the reason, and size and time of every file when it was found.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from typing import Any

from perdure.checkpoint import manifest, memory, samples, second_look
from perdure.checkpoint.checkpoints import Checkpoint

logger = logging.getLogger("perdure.checkpoint")


def fault(found: Checkpoint, *, believe: bool = True, verify: str = samples.FULL) -> str | None:
    """Why `found` must not be loaded, or None when it is whole; marked, or unmarked, accordingly.

    `believe`: take a mark that stands for an answer, and do not read. `verify`: how closely to look; where a mark
    stands that is not believed, every byte is read, since only that can take it back. What a mount shows is looked at
    twice before it is called damaged. Raises CheckpointUnavailable when a file can not be read now.
    """
    said = standing(found)
    if said and believe:
        return said
    closely = samples.FULL if said else verify
    reason = found.fault(closely)
    if reason is not None and (again := second_look.take(found)) is not None:
        found, reason = again, again.fault(closely)
    if reason is None and closely == samples.FULL:
        unmark(found)
    elif reason is not None:
        mark(found, reason)
    return reason


def mark(found: Checkpoint, reason: str) -> None:
    """Write down that `found` was read and is not what was committed. One that can not be written is only logged."""
    memory.of(found.root).refuse(found)
    try:
        content = json.dumps({"reason": reason, "files": _stamps(found)})
        path = _path(found)
        if path is None:
            return
        temporary = f"{path}.tmp-{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError as error:
        logger.debug("marking step %d in %s as damaged: %s", found.step, found.root, error)


def unmark(found: Checkpoint) -> None:
    """Take the mark away: `found` was read and is whole."""
    memory.of(found.root).accept(found)
    path = _path(found)
    if path is not None:
        with contextlib.suppress(OSError):
            os.unlink(path)


def standing(found: Checkpoint) -> str | None:
    """Why `found` was refused before, and counts for nothing; None if something about its files has changed since."""
    path = _path(found)
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        if content["files"] != _stamps(found):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    memory.of(found.root).refuse(found)
    return str(content["reason"])


def _path(found: Checkpoint) -> str | None:
    return manifest.path_of(found.root, found.manifests[-1].name + manifest.DAMAGED) if found.manifests else None


def _stamps(found: Checkpoint) -> dict[str, Any]:
    return {path: _stamp(os.path.join(found.root, path)) for path in sorted(found.files)}


def _stamp(path: str) -> list[int] | None:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return [status.st_size, status.st_mtime_ns // 1_000_000_000]
