"""Puts a snapshot of a workdir into a folder that jobs of a cluster share.

Files of the snapshot before that are not in the new one are removed; what jobs have written is left alone. A record
beside the folder says which snapshot it holds, and which files are the snapshot's.
"""

from __future__ import annotations

import fcntl
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perdure.agent.state_file import read_json, write_json


@contextmanager
def locked(record: Path) -> Iterator[None]:
    """Keep the agents of other jobs from changing the folder of `record` meanwhile."""
    descriptor = os.open(str(record) + ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def holds(record: Path, snapshot: str) -> bool:
    """Whether the folder holds `snapshot`, complete."""
    return (read_json(record) or {}).get("snapshot") == snapshot


def replace(record: Path, snapshot: str, folder: Path, archive: Path, unpack: Callable[[], None]) -> None:
    """Replace the snapshot that `folder` holds by that of `archive`, which `unpack` puts in place. Raises OSError."""
    with tarfile.open(archive, "r:gz") as tar:
        files = sorted(os.path.normpath(member.name) for member in tar if not member.isdir())
    before = (read_json(record) or {}).get("files", [])
    # Until it is complete, the folder holds no snapshot, but the files of both must be known.
    write_json(record, {"snapshot": None, "files": sorted({*before, *files})})
    for name in {*before, *files}:
        path = folder / name
        with suppress(OSError):  # removed also if it is replaced: other folders may link to it
            path.unlink()
            _remove_empty(path.parent, folder)
    unpack()
    write_json(record, {"snapshot": snapshot, "files": files})


def _remove_empty(folder: Path, root: Path) -> None:
    while folder != root:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
