"""Copies a bucket into a folder."""

from __future__ import annotations

import time
from collections.abc import Mapping

from perdure.agent.storage.rclone import Remote
from perdure.agent.storage.rclone_mount import MountError, store_error
from perdure.agent.storage.snapshot import Stamp
from perdure.agent.storage.synced.folder_marker import MARK_FILE
from perdure.agent.storage.synced.folder_tree import read_tree
from perdure.agent.storage.synced.rclone_calls import CallFailed, RcloneCalls, can_be_named

_CLOCK_MARGIN_NS = 10**9  # a file's time is that of the kernel's last tick


def download(rclone: RcloneCalls, remote: Remote, folder: str, *, shown: str) -> dict[str, int]:
    """Copy the bucket's objects into the folder; returns their sizes in bytes, by name. Raises MountError.

    `shown`: the folder's path in messages.
    """
    where = f"copying bucket {remote.bucket} to {shown}"
    try:
        rclone.download(folder)
        return rclone.sizes()
    except CallFailed as error:
        if "directory not found" not in str(error) or remote.url == remote.bucket_url:
            raise store_error(where, f"rclone says: {error}") from None
        _check_bucket(rclone, remote, where)
        return {}
    except OSError as error:
        raise MountError(f"{where}: starting rclone: {error}") from error


def _check_bucket(rclone: RcloneCalls, remote: Remote, where: str) -> None:
    """A prefix without objects is no error, but a bucket that does not exist is one."""
    try:
        rclone.call("lsf", remote.bucket_url, "--max-depth", "1")
    except CallFailed as missing:
        raise store_error(where, f"rclone says: {missing}") from None


def download_changes(
    rclone: RcloneCalls, remote: Remote, folder: str, uploaded: Mapping[str, Stamp], *, shown: str
) -> dict[str, Stamp]:
    """Copy the objects that are new in the bucket, or newer there, and return their files as they are now.

    `uploaded`: the files that the bucket is known to have. One that was changed or removed here since stays so. A file
    that is written here meanwhile is not among the returned ones: a copy is as old as its object. Raises MountError.
    """
    oldest_write_ns = time.time_ns() - _CLOCK_MARGIN_NS
    try:
        before, sizes = read_tree(folder, without=MARK_FILE).files, rclone.sizes()
        names = [name for name in sizes if can_be_named(name) and uploaded.get(name) == before.get(name)]
        if names:
            rclone.download_newer(folder, names)
        now = read_tree(folder, without=MARK_FILE).files
    except CallFailed as error:
        if "directory not found" in str(error):
            return {}  # nothing was ever written
        raise store_error(f"copying bucket {remote.bucket} to {shown}", f"rclone says: {error}") from None
    except OSError as error:
        raise MountError(f"copying bucket {remote.bucket} to {shown}: {error}") from error
    changed = {name: now[name] for name in names if name in now and now[name] != before.get(name)}
    return {
        name: stamp for name, stamp in changed.items() if stamp.size == sizes[name] and stamp.mtime_ns < oldest_write_ns
    }
