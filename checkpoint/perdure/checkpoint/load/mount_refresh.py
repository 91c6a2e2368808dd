"""Refreshes what a mount shows: rclone and the kernel cache its listing of the bucket and the sizes of files."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable

from perdure.checkpoint.durability import mounts
from perdure.checkpoint.durability.mounts import Mount, MountSnapshot
from perdure.checkpoint.durability.rclone_rc import Rc, RcError
from perdure.checkpoint.format.file_changes import OWN_DIR
from perdure.checkpoint.load import saved_step
from perdure.checkpoint.load.saved_step import Checkpoint

_REFRESH_TIMEOUT_S = 10.0
_VISIBLE_POLL_S = 0.5


def wait_visible(root: str, prefix: str, step: int, *, timeout_s: float | None) -> Checkpoint | None:
    """The checkpoint of `step`, once all of its files from all processes are visible here; None after `timeout_s`.

    If each node has its own mount, a file of another node is visible only once the bucket has it. `timeout_s` None: no
    limit.
    """
    ends_at = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    while True:
        current = saved_step.read_step(root, prefix, step)
        if all(map(os.path.exists, current.all_paths)) and current.manifests:
            return current
        if time.monotonic() >= ends_at or mounts.find_mount(root) is None:
            return None
        time.sleep(_VISIBLE_POLL_S)
        refresh(root)


def refresh(root: str, folders: Iterable[str] = (), snapshot: MountSnapshot | None = None) -> None:
    """Refresh the mount's listings of `root` and of `folders` (relative to it), if it is on a mount. Best effort."""
    mount = (snapshot or MountSnapshot()).find(root)
    if mount is None or mount.rc_socket is None:
        return
    _refresh_listings(mount, mount.rc_socket, (os.path.join(root, folder) for folder in ("", OWN_DIR, *folders)))


def refresh_folder(folder: str) -> None:
    """Refresh the mount's listing of `folder` alone, if it is on a mount. Best effort."""
    mount = mounts.find_mount(folder)
    if mount is not None and mount.rc_socket is not None:
        _refresh_listings(mount, mount.rc_socket, [folder])


def _refresh_listings(mount: Mount, rc_socket: str, folders: Iterable[str]) -> None:
    top = os.path.realpath(mount.path)
    relative = {os.path.relpath(os.path.realpath(folder), top) for folder in folders}
    named = {f"dir{number}": name for number, name in enumerate(sorted(relative - {os.curdir}))}
    control = Rc(rc_socket)
    with contextlib.suppress(RcError):
        if os.curdir in relative:  # the top of a mount has no name
            control.call("vfs/refresh", timeout_s=_REFRESH_TIMEOUT_S)
        control.call("vfs/refresh", timeout_s=_REFRESH_TIMEOUT_S, **named)
