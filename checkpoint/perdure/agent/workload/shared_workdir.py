"""Puts a snapshot of a workdir into a folder that jobs of a cluster share.

Files of the snapshot before that are not in the new one are removed; what jobs have written is left alone. A record
beside the folder says which snapshot it holds, and which files are the snapshot's.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perdure.agent.state_file import read_json, write_json

_FICLONE = 0x40049409  # ioctl_ficlone(2)
_CHUNK_BYTES = 1 << 20


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
        with suppress(OSError):  # removed also if it is replaced: a process may have it open
            path.unlink()
            _remove_empty(path.parent, folder)
    unpack()
    write_json(record, {"snapshot": snapshot, "files": files})


def copy(source: Path, source_record: Path, target: Path, record: Path, is_cancelled: Callable[[], bool]) -> None:
    """Copy what jobs have written to `source`, without the files of the snapshot that it holds, unless it was done.

    The jobs of both folders change their files in place, so they share none. Call it with `record` locked. Waits while
    `source` gets another snapshot. Raises OSError; stops early once it is cancelled.
    """
    if record.exists():
        return
    with locked(source_record):
        brought = set((read_json(source_record) or {}).get("files", ()))
        for folder, names, files in os.walk(str(source)):
            within = os.path.relpath(folder, str(source))
            (target / within).mkdir(parents=True, exist_ok=True)
            links = [name for name in names if os.path.islink(os.path.join(folder, name))]
            for name in (*files, *links):
                if is_cancelled():
                    return
                if os.path.normpath(os.path.join(within, name)) not in brought:
                    with suppress(FileNotFoundError):  # a job has removed it meanwhile
                        _copy_file(os.path.join(folder, name), str(target / within / name))
            shutil.copystat(folder, str(target / within))
    write_json(record, {"snapshot": None, "files": []})


def _copy_file(source: str, target: str) -> None:
    """Copy a file or a link; sockets, pipes and devices are left out. The blocks are shared where that is possible."""
    mode = os.lstat(source).st_mode
    if stat.S_ISLNK(mode):
        with suppress(FileNotFoundError):
            os.unlink(target)
        os.symlink(os.readlink(source), target)
    elif stat.S_ISREG(mode):
        with open(source, "rb") as reader, open(target, "wb") as writer:
            try:
                fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
            except OSError:  # not on this file system
                shutil.copyfileobj(reader, writer, _CHUNK_BYTES)
        shutil.copystat(source, target)


def _remove_empty(folder: Path, root: Path) -> None:
    while folder != root:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
