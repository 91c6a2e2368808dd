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

from holdfast.checkpoint import checkpoints, durability, samples
from holdfast.checkpoint.checkpoints import Checkpoint
from holdfast.checkpoint.rc import Rc, RcError
from holdfast.checkpoint.snapshot import OWN_DIR

_SETTLES_S = 1.5  # the kernel believes what a mount said of a file for 1 s
_LOOK_AFTER_S = 0.05
_LISTING_S = 10.0


def refresh(root: str, folders: Iterable[str] = ()) -> None:
    """Have the mount that `root` lies on, if any, list it anew, and `folders` (relative to it). Best effort."""
    mount = durability.mount_of(root)
    if mount is None or mount.rc_socket is None:
        return
    top = os.path.relpath(os.path.realpath(root), os.path.realpath(mount.path))
    wanted = {os.path.normpath(os.path.join(top, folder)) for folder in ("", OWN_DIR, *folders)}
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
