"""Errors that a full disk causes, and the text that says so."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

_FULL_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
_LOW_BYTES = 100 * 10**6  # a new home needs 85 MB
_PRIMARY_CODE = 0xFF  # SQLite's extended codes keep the primary one in the low byte


def is_disk_error(error: BaseException) -> bool:
    """Whether a disk that is full or fails caused `error`: an OSError of the system, or SQLITE_FULL or SQLITE_IOERR."""
    return any(_is_disk_error(cause) for cause in _causes(error))


def disk_advice(folder: Path) -> str:
    """What to do after a disk error in `folder`. Names the free space."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    free = shutil.disk_usage(existing).free
    space = f"{existing} has {free / 1e6:.1f} MB of free space"
    if free < _LOW_BYTES:
        return (
            f"{space}; delete other files from its disk, or set PERDURE_HOME to a folder on another disk (a new home "
            "needs about 85 MB, and jobs' logs need more)"
        )
    return f"{space}; check the quota of this user, and that the disk works (dmesg)"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error`, the driver's error in it, and what raised them."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        cause = pending.pop()
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        pending += [cause.__cause__, cause.__context__, getattr(cause, "orig", None)]


def _is_disk_error(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FULL_DISK_ERRNOS
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and code & _PRIMARY_CODE in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
