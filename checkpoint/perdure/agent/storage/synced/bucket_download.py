"""Copies a bucket into a folder."""

from __future__ import annotations

from perdure.agent.storage.rclone import Remote
from perdure.agent.storage.rclone_mount import MountError, store_error
from perdure.agent.storage.synced.rclone_calls import CallFailed, RcloneCalls


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
