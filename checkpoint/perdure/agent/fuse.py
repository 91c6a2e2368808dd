"""The kernel's side of a mount: whether FUSE can be used here, what stands at a path, how to take it away.

Nothing here knows of rclone or buckets.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

GUARD = "perdure-guard"
NO_FUSE = "PERDURE_NO_FUSE"  # the user's switch
_CAP_SYS_ADMIN = 21
_COMMAND_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class MountEntry:
    """One line of mountinfo: what is mounted at `path`, by which filesystem, from which source."""

    path: str
    kind: str
    source: str


def fuse_problem(*, in_user_namespace: bool = False) -> str | None:
    """Why FUSE can not be used here, in one sentence that ends in what to do; None when it can. Cheap.

    `in_user_namespace`: the same for a process that is root in a user namespace of this user's.
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
            f"/dev/fuse can not be opened ({error.strerror}): "
            "make it writable for this user (chmod 666), or start the container with --device /dev/fuse"
        )
    return None


def _capability_problem() -> str | None:
    if not int(_own_status("CapEff") or "0", 16) >> _CAP_SYS_ADMIN & 1:
        return "mounting is not permitted here: start the container with --cap-add SYS_ADMIN"
    return None


def _user_problem() -> str | None:
    helper = _unmounter()
    if helper and not os.stat(helper).st_mode & stat.S_ISUID:
        return f"{helper} is not setuid root, so this user can not mount: run as root, or reinstall fuse3"
    if _own_status("NoNewPrivs") == "1":
        return "this process may not gain privileges (no_new_privs), so fusermount3 can not mount: run as root"
    return None


def _own_status(field: str) -> str | None:
    found = re.search(rf"^{field}:\s*(\S+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return found.group(1) if found else None


def _unmounter() -> str | None:
    return shutil.which("fusermount3") or shutil.which("fusermount")


def others_allowed() -> bool:
    """Whether `allow_other` may be asked for: root always may, others where /etc/fuse.conf says so."""
    if os.geteuid() == 0:
        return True
    try:
        lines = Path("/etc/fuse.conf").read_text().splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)


def mount_table() -> dict[str, MountEntry]:
    """What stands on top at each mountpoint that this process can see."""
    table = {}
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        left, _, right = line.partition(" - ")
        path = _unescaped(left.split(" ")[4])
        kind, source = right.split(" ")[:2]
        table[path] = MountEntry(path, kind, _unescaped(source))  # later lines are mounted over earlier ones
    return table


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def is_dead(path: str) -> bool:
    """Whether the filesystem at `path` has lost its server process (every access answers ENOTCONN)."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def put_guard(path: str) -> None:
    """Mount an empty read-only filesystem at `path`, to lie under the real mount.

    When the real mount goes away by itself, a write then fails instead of landing on the local disk, where it would
    look saved. Needs root; without it there is no guard, and the check of the mount is what tells.
    """
    if os.geteuid() == 0:
        _quietly("mount", "-t", "tmpfs", "-o", "ro,size=4k,mode=0555,nosuid,nodev", GUARD, path)


def is_rclone_of(entry: MountEntry | None, remote: str) -> bool:
    """Whether `entry` is rclone's mount of the remote of this name (rclone may add a hash: `name{hash}:bucket`)."""
    return entry is not None and re.match(re.escape(remote) + r"(\{[^}]*\})?:", entry.source) is not None


def take_away(path: str, remote: str) -> None:
    """Unmount what stands at `path`: rclone's mount of `remote`, our guard, or a FUSE mount whose server is dead.

    A busy mount is detached lazily: it leaves the tree at once and ends when its last file is closed.
    """
    for _ in range(8):
        entry = mount_table().get(path)
        if entry is None or not (is_rclone_of(entry, remote) or _is_debris(entry)):
            return
        for command in _unmount_commands(path, fuse=entry.kind.startswith("fuse")):
            if _quietly(*command):
                break


def _is_debris(entry: MountEntry) -> bool:
    return entry.source == GUARD or (entry.kind.startswith("fuse") and is_dead(entry.path))


def _unmount_commands(path: str, *, fuse: bool) -> list[tuple[str, ...]]:
    helper = _unmounter()
    if fuse and helper:
        return [(helper, "-u", path), ("umount", "-l", path), (helper, "-u", "-z", path)]
    return [("umount", path), ("umount", "-l", path)]


def _quietly(*command: str) -> bool:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, timeout=_COMMAND_TIMEOUT_S, check=False)
        return done.returncode == 0
    return False
