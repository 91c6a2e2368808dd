"""The kernel's side of a mount: whether FUSE can be used here, what is mounted at a path, how to unmount it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

from perdure.checkpoint.durability import mount_table
from perdure.checkpoint.durability.mount_table import MountEntry
from perdure.checkpoint.durability.mounts import GUARD

NO_FUSE = "PERDURE_NO_FUSE"  # the user's switch
_CAP_SYS_ADMIN = 21
_COMMAND_TIMEOUT_S = 10.0


def fuse_problem(*, in_user_namespace: bool = False) -> str | None:
    """Why FUSE cannot be used here, in one sentence that ends in what to do; None when it can. Cheap.

    `in_user_namespace`: the same for a process that is root in a user namespace of this user.
    """
    if os.environ.get(NO_FUSE, "0") not in ("", "0"):
        return f"{NO_FUSE} is set, so nothing is mounted by FUSE: unset it"
    if _unmounter() is None:
        return "fusermount3 is not installed: install the package fuse3"
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse: load the kernel module fuse, or start the container with --device /dev/fuse"
    if in_user_namespace:
        return _device_problem()
    return _device_problem() or _capability_problem() if os.geteuid() == 0 else _user_problem()


def _device_problem() -> str | None:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return (
            f"/dev/fuse cannot be opened ({error.strerror}): "
            "make it writable for this user (chmod 666), or start the container with --device /dev/fuse"
        )
    return None


def _capability_problem() -> str | None:
    if not int(_process_status("CapEff") or "0", 16) >> _CAP_SYS_ADMIN & 1:
        return "mounting is not permitted here: start the container with --cap-add SYS_ADMIN"
    return None


def _user_problem() -> str | None:
    helper = _unmounter()
    if helper and not os.stat(helper).st_mode & stat.S_ISUID:
        return f"{helper} is not setuid root, so this user cannot mount: run as root, or reinstall fuse3"
    if _process_status("NoNewPrivs") == "1":
        return "this process may not gain privileges (no_new_privs), so fusermount3 cannot mount: run as root"
    return None


def _process_status(field: str) -> str | None:
    match = re.search(rf"^{field}:\s*(\S+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return match.group(1) if match else None


def _unmounter() -> str | None:
    return shutil.which("fusermount3") or shutil.which("fusermount")


def may_allow_other() -> bool:
    """Whether this user may use the option `allow_other`: root always may, others if /etc/fuse.conf allows it."""
    if os.geteuid() == 0:
        return True
    try:
        lines = Path("/etc/fuse.conf").read_text().splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)


def mounts_by_path() -> dict[str, MountEntry]:
    """The topmost mount at each mountpoint that this process can see."""
    return {entry.path: entry for entry in mount_table.entries()}  # later entries are mounted over earlier ones


def is_dead(path: str) -> bool:
    """Whether the file system at `path` has lost its server process: every access fails with ENOTCONN."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def mount_guard(path: str) -> None:
    """Mount an empty read-only file system at `path`, below the real mount.

    If the real mount disappears, a write then fails instead of reaching the local disk, where it would look saved.
    Needs root. Without it there is no guard, and only the periodic check of the mounts notices the loss.
    """
    if os.geteuid() == 0:
        _run_quietly("mount", "-t", "tmpfs", "-o", "ro,size=4k,mode=0555,nosuid,nodev", GUARD, path)


def is_rclone_of(entry: MountEntry | None, remote: str) -> bool:
    """Whether `entry` is rclone's mount of `remote`. rclone may add a hash to the name: `name{hash}:bucket`."""
    return entry is not None and re.match(re.escape(remote) + r"(\{[^}]*\})?:", entry.source) is not None


def unmount_ours(path: str, remote: str) -> None:
    """Unmount rclone's mount of `remote`, the guard, and FUSE mounts without a server at `path`; nothing else.

    A busy mount is detached lazily: it leaves the tree at once and ends when its last file is closed.
    """
    for _ in range(8):
        entry = mounts_by_path().get(path)
        if entry is None or not (is_rclone_of(entry, remote) or _is_leftover(entry)):
            return
        for command in _unmount_commands(path, fuse=entry.kind.startswith("fuse")):
            if _run_quietly(*command):
                break


def _is_leftover(entry: MountEntry) -> bool:
    return entry.source == GUARD or (entry.kind.startswith("fuse") and is_dead(entry.path))


def _unmount_commands(path: str, *, fuse: bool) -> list[tuple[str, ...]]:
    helper = _unmounter()
    if fuse and helper:
        return [(helper, "-u", path), ("umount", "-l", path), (helper, "-u", "-z", path)]
    return [("umount", path), ("umount", "-l", path)]


def _run_quietly(*command: str) -> bool:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, timeout=_COMMAND_TIMEOUT_S, check=False)
        return done.returncode == 0
    return False
