"""Builds the file system of a machine in the machine's own mount namespace.

The root is one of two kinds. `overlay`: all files of this computer, writable; changes go to the machine's disk. `bind`:
this computer's folders read-only, with room for new ones next to them. In both, the machine has its own /tmp, /run,
/dev/shm, home and state, and sees two folders of the controller: artifacts (read-only) and buckets. The rest of the
controller's home is hidden.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from perdure.controller.clouds.local import layout
from perdure.controller.clouds.local.machine import syscalls
from perdure.controller.clouds.local.machine.syscalls import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    MS_UNBINDABLE,
)

OVERLAY = "overlay"
BIND = "bind"

# The machine's own folders, which are empty at the start.
OWN = {"/tmp": 0o1777, "/var/tmp": 0o1777, "/run": 0o755, layout.NODE_HOME: 0o700, layout.NODE_STATE: 0o700}
KERNEL = ("/proc", "/sys", "/dev")
# With `bind`, folders in which new ones can be created: their children are mounted one by one.
GRAFTED = ("/", "/home", "/var", "/var/lib")
# Other disks of this computer get an overlay each. Other mounts are hidden: automounts, containers' layers, FUSE …
DISKS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "nfs", "nfs4", "virtiofs", "9p"}


def enter(kind: str, plan: dict[str, Any], disk: str) -> None:
    """Change this process's root to the machine's. `disk`: the folder that receives all the machine writes. It is
    empty, or that of the same machine when it ran before.

    `plan`: "keeps_disk" (whether the disk may be used again), "hidden" (the controller's home), "artifacts", "buckets"
    (folders of this computer), "visible" (folders that the machine must see), "persistent" (writable folders that
    outlive the machine; of a controller's machine), "ip", "hostname". Raises OSError.
    """
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", flags=MS_REC | MS_PRIVATE)  # or the mounts below would be visible outside
    root = os.path.join(disk, "root")
    os.makedirs(root, exist_ok=True)
    if kind == OVERLAY:
        _overlay_root(root, disk, hidden=plan["hidden"], keeps_disk=plan.get("keeps_disk", False))
    else:
        _bind_root(root)
    _kernel_file_systems(root)
    _hide(root, plan["hidden"])
    _own_folders(root, os.path.join(disk, "own"))
    _share(root, plan["buckets"], layout.NODE_BUCKETS)
    _share(root, plan["artifacts"], layout.NODE_ARTIFACTS, read_only=True)
    for path in plan.get("persistent", ()):
        _share(root, path, path)
    for path in plan["visible"]:
        if not os.path.isdir(_inside(root, path)):
            _share(root, path, path, read_only=True)
    _name_service(root, os.path.join(disk, "own"), ip=plan["ip"], hostname=plan["hostname"])
    os.chdir(root)
    syscalls.pivot_root(".", ".")
    syscalls.unmount_detached(".")
    os.chdir("/")


def _overlay_root(root: str, disk: str, *, hidden: str, keeps_disk: bool) -> None:
    _overlay("/", root, os.path.join(disk, "layers", "0"), keeps_disk=keeps_disk)
    for number, (path, kind) in enumerate(_other_mounts(hidden), 1):
        if os.path.isfile(path):  # a container's /etc/resolv.conf and the like
            _bind(path, root + path, read_only=True)
        elif kind in DISKS:
            try:
                layer = os.path.join(disk, "layers", path.strip("/").replace("/", "%") or str(number))
                _overlay(path, root + path, layer, keeps_disk=keeps_disk)
            except OSError:  # not every file system can be the lower one of an overlay
                _bind(path, root + path, read_only=True)


def _overlay(lower: str, target: str, layer: str, *, keeps_disk: bool) -> None:
    os.makedirs(os.path.join(layer, "upper"), exist_ok=True)
    os.makedirs(os.path.join(layer, "work"), exist_ok=True)
    # The overlay's root has the mode of the upper folder.
    os.chmod(os.path.join(layer, "upper"), os.stat(lower).st_mode & 0o7777)
    # Relative paths and a descriptor avoid commas and colons, which would end a path. `volatile`: a disk that is
    # deleted with its machine needs no syncing, which would slow down its end. The kernel mounts such a layer once.
    os.chdir(layer)
    folder = os.open(lower, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        options = f"lowerdir=/proc/self/fd/{folder},upperdir=upper,workdir=work"
        try:
            syscalls.mount("overlay", target, "overlay", options=options if keeps_disk else f"volatile,{options}")
        except OSError:
            syscalls.mount("overlay", target, "overlay", options=options)
    finally:
        os.close(folder)


def _other_mounts(hidden: str) -> list[tuple[str, str]]:
    """(path, file system) of the mounts below the root, outermost first, except those that every machine has itself."""
    apart = (*KERNEL, *OWN, hidden)
    mounts: dict[str, str] = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            before, _, after = line.partition(" - ")
            path = before.split(" ")[4].encode("latin-1", "surrogateescape").decode("unicode_escape")
            path = path.encode("latin-1").decode("utf-8", "surrogateescape")
            if path != "/" and not any(_is_within(path, folder) for folder in apart):
                mounts[path] = after.split(" ")[0]
    return sorted(mounts.items())


def _bind_root(root: str) -> None:
    syscalls.mount(root, root, flags=MS_BIND)  # pivot_root needs a mount
    syscalls.mount("none", root, flags=MS_UNBINDABLE)  # or the binds below would include it in itself
    for folder in GRAFTED:
        if os.path.islink(folder):
            continue
        os.makedirs(root + folder, exist_ok=True)
        for entry in os.scandir(folder):
            if entry.is_symlink():
                if not os.path.lexists(root + entry.path):
                    os.symlink(os.readlink(entry.path), root + entry.path)
            elif entry.is_dir() and entry.path not in (*GRAFTED, *KERNEL, *OWN):
                os.makedirs(root + entry.path, exist_ok=True)
                _bind(entry.path, root + entry.path, read_only=True)


def _kernel_file_systems(root: str) -> None:
    for path in KERNEL:
        os.makedirs(root + path, exist_ok=True)
    syscalls.mount("proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _bind("/sys", root + "/sys")
    _bind("/dev", root + "/dev")
    if os.path.isdir("/dev/shm"):
        syscalls.mount("tmpfs", root + "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")


def _hide(root: str, path: str) -> None:
    if os.path.isdir(_inside(root, path)):
        syscalls.mount("tmpfs", _inside(root, path), "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")


def _own_folders(root: str, own: str) -> None:
    if os.path.isdir(own + "/run"):  # what it held has ended with the processes of the time before
        import shutil  # slow to import

        shutil.rmtree(own + "/run")
    for path, mode in OWN.items():
        if not os.path.isdir(own + path):
            os.makedirs(own + path)
            os.chmod(own + path, mode)
        _share(root, own + path, path)
    os.makedirs(root + "/run/lock", exist_ok=True)


def _name_service(root: str, own: str, *, ip: str, hostname: str) -> None:
    """The machine's name resolves to its address, and other names as outside."""
    if os.path.isfile(root + "/etc/hosts"):
        with open("/etc/hosts", encoding="utf-8", errors="surrogateescape") as file:
            hosts = file.read()
        with open(own + "/hosts", "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"{hosts.rstrip()}\n{ip} {hostname}\n")
        _bind(own + "/hosts", root + "/etc/hosts")
    # systemd keeps resolv.conf in /run, and the machine has its own /run.
    resolver = os.path.realpath("/etc/resolv.conf")
    if _is_within(resolver, "/run"):
        with contextlib.suppress(FileNotFoundError), open(resolver, "rb") as source:
            os.makedirs(os.path.dirname(root + resolver), exist_ok=True)
            with open(root + resolver, "wb") as copy:
                copy.write(source.read())


def _share(root: str, source: str, path: str, *, read_only: bool = False) -> None:
    target = _inside(root, path)
    os.makedirs(target, exist_ok=True)
    _bind(source, target, read_only=read_only)


def _inside(root: str, path: str) -> str:
    """`path` below `root`. Links are resolved on this computer: an absolute one would lead out of `root`."""
    return root + os.path.realpath(path)


def _bind(source: str, target: str, *, read_only: bool = False) -> None:
    syscalls.mount(source, target, flags=MS_BIND | MS_REC)
    if read_only:
        syscalls.make_read_only(target)


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
