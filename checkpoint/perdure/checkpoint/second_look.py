"""What a mount shows as damaged is looked at twice before it is called so.

A mount may show less than there is, for some seconds. Its listing of the bucket is cached, and so are sizes, by rclone
and by the kernel. After a kill, rclone takes the files up again that it had not uploaded; once such a file is in the
bucket, and until its folder is listed anew, rclone takes it for one that was removed there, and shows it empty or not
at all. Asked to list the folders anew, it shows what the bucket has.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable

from perdure.checkpoint import checkpoints, durability, samples
from perdure.checkpoint.checkpoints import Checkpoint
from perdure.checkpoint.rc import Rc, RcError
from perdure.checkpoint.snapshot import OWN_DIR

_SETTLES_S = 1.5  # the kernel believes what a mount said of a file for 1 s
_LOOK_AFTER_S = 0.05
_LISTING_S = 10.0
_LOOK_FOR_OTHERS_S = 0.5


def refresh(root: str, folders: Iterable[str] = ()) -> None:
    """Have the mount that `root` lies on, if any, list it anew, and `folders` (relative to it). Best effort."""
    mount = durability.mount_of(root)
    if mount is None or mount.rc_socket is None:
        return
    _list_anew(mount, (os.path.join(root, folder) for folder in ("", OWN_DIR, *folders)))


def refresh_folder(folder: str) -> None:
    """Have the mount that `folder` lies on, if any, list it anew, and nothing else. Best effort."""
    mount = durability.mount_of(folder)
    if mount is not None and mount.rc_socket is not None:
        _list_anew(mount, [folder])


def appeared(root: str, prefix: str, step: int, *, timeout_s: float | None) -> Checkpoint | None:
    """The checkpoint of `step` once all that several processes wrote of it can be seen from here, which on a mount of
    this node's own means that the bucket has it; None if that takes longer than `timeout_s` (None: no limit)."""
    ends_at = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    while True:
        found = checkpoints.at(root, prefix, step)
        if all(map(os.path.exists, found.all_paths)) and found.manifests:
            return found
        if time.monotonic() >= ends_at or durability.mount_of(root) is None:
            return None
        time.sleep(_LOOK_FOR_OTHERS_S)
        refresh(root)


def _list_anew(mount: durability.Mount, folders: Iterable[str]) -> None:
    assert mount.rc_socket is not None
    top = os.path.realpath(mount.path)
    wanted = {os.path.relpath(os.path.realpath(folder), top) for folder in folders}
    named = {f"dir{number}": name for number, name in enumerate(sorted(wanted - {os.curdir}))}
    control = Rc(mount.rc_socket)
    with contextlib.suppress(RcError):
        if os.curdir in wanted:  # the top of a mount has no name
            control.call("vfs/refresh", timeout_s=_LISTING_S)
        control.call("vfs/refresh", timeout_s=_LISTING_S, **named)


def take(first: Checkpoint) -> Checkpoint | None:
    """The checkpoint as its mount shows it after it was asked again; None where no mount stands in between.

    Waits a moment for files that are missing or have another size than they should. Raises CheckpointUnavailable.
    """
    mount = durability.mount_of(first.root)
    if mount is None or os.path.islink(mount.path):
        return None
    refresh(first.root, {os.path.dirname(path) for path in first.files})
    ends_at = time.monotonic() + _SETTLES_S
    while True:
        again = checkpoints.at(first.root, first.prefix, first.step)
        if again.fault(samples.SIZE) is None or time.monotonic() >= ends_at:
            return again
        time.sleep(_LOOK_AFTER_S)
