"""Whether the bucket has a file, and how to have it uploaded.

A disk and NFS have a file once it was flushed. On a mount with write-back (`MOUNT_CACHED`) close, fsync and rename say
nothing about the bucket: rclone uploads later. It keeps a record of each cached file (`cache_record`). A file that was
written by another machine, or was evicted after its upload, has none; then the mount shows what the bucket has. An
ordinary folder that the agent uploads has such records, too, and shows files that the bucket does not have. Of other
FUSE file systems it is not known when the bucket has a file.

Every function takes a `MountSnapshot`; without one it reads the mounts anew.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perdure.checkpoint.durability.cache_record import CacheRecord, has_record_name, parse_record
from perdure.checkpoint.durability.file_version import UNKNOWN, FileVersion, Versions, version_of
from perdure.checkpoint.durability.mounts import MountSnapshot
from perdure.checkpoint.durability.rclone_rc import Rc, RcError

_REREADS = 5  # rclone truncates a metadata file before it rewrites it: half a file is inconclusive
_REREAD_AFTER_S = 0.002
_QUEUE_POLLS, _QUEUE_POLL_S = 20, 0.01
_WAIT_INITIAL_S, _WAIT_MAX_S = 0.01, 0.5


def is_durable(paths: Versions, mounts: MountSnapshot | None = None) -> bool | None:
    """Whether all files are where they outlive this machine (on a mount: in the bucket). None: not known.

    Where `paths` maps each path to the content that was committed, another content under that name does not count. Off
    the mounts a file is durable once it exists: a save flushes its files to the disk before it commits them.
    """
    mounts = mounts or MountSnapshot()
    caches: dict[str, _FolderCache] = {}
    states: set[bool | None] = set()
    for path in paths:
        folder = os.path.dirname(path)
        if folder not in caches:
            caches[folder] = _folder_cache(folder, mounts)
        # The file first: what the mount shows is in the bucket only if the record, read later, is not dirty.
        seen = _stat(path)
        states.add(False if seen is None else caches[folder].is_uploaded(path, seen, version_of(path, paths)))
    if False in states:
        return False
    return None if None in states else True


def wait_durable(paths: Versions, *, timeout_s: float | None, mounts: MountSnapshot | None = None) -> bool | None:
    """Wait until `is_durable` returns True or None, at most `timeout_s` (None: without limit).

    It returns False as soon as a file is gone or was overwritten. First the mount is asked to upload these files before
    all others. Without `mounts` the mounts are read anew at every poll.
    """
    pending = paths if isinstance(paths, Mapping) else list(paths)
    upload_now(list(pending), mounts)
    ends_at = None if timeout_s is None else time.monotonic() + timeout_s
    pause_s = _WAIT_INITIAL_S
    while True:
        durable = is_durable(pending, mounts)
        if durable is not False or any(_is_gone(path, version_of(path, pending)) for path in pending):
            return durable
        remaining_s = float("inf") if ends_at is None else ends_at - time.monotonic()
        if remaining_s <= 0:
            return False
        time.sleep(min(pause_s, remaining_s))
        pause_s = min(_WAIT_MAX_S, pause_s * 1.5)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (OSError, ValueError):
        return None


def _is_gone(path: str, version: FileVersion | None) -> bool:
    """Whether the file does not exist, or was written again since it had `version`."""
    seen = _stat(path)
    return seen is None or (version is not None and version.is_replaced_by(FileVersion.from_stat(seen)))


def upload_now(paths: Sequence[str], mounts: MountSnapshot | None = None) -> None:
    """Ask the mount that `paths` lie on to upload them before all other files, in this order. Best effort.

    A file that was closed a moment ago may not be in rclone's queue yet, because the kernel reports the close later.
    Such files are looked up repeatedly for up to 0.2 s.
    """
    if not paths:
        return
    mounts = mounts or MountSnapshot()
    mount = mounts.find(paths[0])
    if mount is None or mount.rc_socket is None:
        return
    top = os.path.realpath(mount.path)
    pending = {os.path.relpath(os.path.realpath(path), top): rank for rank, path in enumerate(paths)}
    control = Rc(mount.rc_socket)
    for _ in range(_QUEUE_POLLS):
        try:
            queue = control.call("vfs/queue").get("queue") or []
            for item in [item for item in queue if item["name"] in pending and not item["uploading"]]:
                # The smallest expiry goes first; one that has passed goes at once.
                control.call("vfs/queue-set-expiry", id=item["id"], expiry=-1e9 + pending[item["name"]])
        except (RcError, KeyError, TypeError):
            return
        queued = {item["name"] for item in queue}
        pending = {name: rank for name, rank in pending.items() if name not in queued}
        if not pending or is_durable([os.path.join(top, name) for name in pending], mounts) is not False:
            return
        time.sleep(_QUEUE_POLL_S)


def readable_path(path: str, mounts: MountSnapshot | None = None) -> str:
    """`path`, or rclone's own copy of it until it is uploaded: reading through the mount would postpone the upload."""
    folder, name = os.path.split(path)
    cache = _folder_cache(folder, mounts or MountSnapshot())
    if cache.metadata is None:
        return path
    copy = os.path.join(cache.content, cache.folder, name)
    try:
        with open(os.path.join(cache.metadata, cache.folder, name), encoding="utf-8") as file:
            state = json.load(file)
        size = os.stat(path).st_size
        is_whole = state["Dirty"] and state["Rs"] == [{"Pos": 0, "Size": size}] and os.stat(copy).st_size == size
    except (OSError, ValueError, KeyError, TypeError):
        return path
    return copy if is_whole and os.access(copy, os.R_OK) else path


@dataclass(frozen=True)
class _FolderCache:
    """rclone's cache of one folder."""

    is_cached: bool  # False: the folder is not cached, so its files are in the bucket when they are closed
    metadata: str | None = None  # directory of the metadata of the mount's files; None: not known
    content: str = ""  # directory of rclone's copies of the mount's files
    folder: str = ""  # the folder, relative to the mount
    is_folder: bool = False  # an ordinary folder: what it shows may not be in the bucket

    def is_uploaded(self, path: str, seen: os.stat_result, version: FileVersion | None) -> bool | None:
        """Whether the bucket has `version` of the file at `path`, of which the mount showed `seen` a moment ago."""
        if not self.is_cached:
            return True
        name = os.path.join(self.folder, os.path.basename(path))
        if self.metadata is None or not os.path.isdir(self.metadata) or not has_record_name(name):
            return None
        record_path = os.path.join(self.metadata, name)
        try:
            record = _find_record(record_path)
            if record is None and self.is_folder:
                return False
            if record is not None and not record.is_uploaded:
                return False
            if version is None or (record is not None and record.has(version)):
                return True
            if version == UNKNOWN:
                return None
            if version.matches(seen.st_size, seen.st_mtime_ns):
                return not self.is_folder
            if not version.may_begin(seen.st_size) or not version.begins(path):
                return False
            record = _find_record(record_path)
            return record is None or record.is_uploaded  # it may have been written again meanwhile
        except OSError:
            return None


def _folder_cache(folder: str, mounts: MountSnapshot) -> _FolderCache:
    mount = mounts.find(folder)
    if mount is None or mount.cache_dir is None:
        return _FolderCache(is_cached=mount is not None and not mount.is_known)
    source = mount.source or mounts.source_at(mount.path) or ""
    colon = source.find(":", 1)  # the name of an unnamed remote begins with a colon: `:s3{4vgl3}:bucket/folder`
    if colon < 0:
        return _FolderCache(is_cached=True)
    remote = os.path.join(source[:colon], source[colon + 1 :].strip("/"))
    metadata, content = (os.path.join(mount.cache_dir, kind, remote) for kind in ("vfsMeta", "vfs"))
    below = os.path.relpath(os.path.realpath(folder), os.path.realpath(mount.path))
    return _FolderCache(
        is_cached=True, metadata=metadata, content=content, folder=below, is_folder=mount.source is not None
    )


def _find_record(path: str) -> CacheRecord | None:
    """rclone's record of a file; None if there is none. An incomplete one counts as dirty. Raises OSError."""
    for _ in range(_REREADS):
        try:
            with open(path, "rb") as file:
                return parse_record(file.read())
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            time.sleep(_REREAD_AFTER_S)
    return CacheRecord(is_uploaded=False, size=None, mtime_ns=None)
