"""The kernel's table of mounts, and the rclone process that serves a mount, with its flags.

Checkpoints are often written to a mount that no agent made: a user's own rclone, or another launcher's.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

_TABLE = "/proc/self/mountinfo"
_PROC = "/proc"
_RCLONE = "fuse.rclone"
# FUSE file systems on which a file is durable when fsync and close return: disks of this machine, and buckets that are
# written to before close returns.
_WRITE_THROUGH_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs", "fuse.gcsfuse", "fuse.goofys", "fuse.blobfuse2"})
_SERVER_CACHE_S = 10.0  # how long the server of a mount is cached
# Boolean flags of `rclone mount` take no second word; of those that do, only these matter here.
_FLAGS = ("--cache-dir", "--vfs-cache-mode", "--rc-addr")
_NO_MODTIME = "--no-modtime"  # the mount shows invented times, so contents cannot be told apart by them


@dataclass(frozen=True)
class MountEntry:
    """One line of the table."""

    path: str  # mountpoint
    kind: str  # type of the file system
    source: str  # `remote:folder` for rclone
    identity: str = ""  # the kernel's number of the mount and of its device; used again after it was unmounted

    @property
    def is_fuse(self) -> bool:
        return self.kind.startswith("fuse") and self.kind != "fusectl"

    @property
    def is_write_through(self) -> bool:
        """Whether a file that was flushed to it is durable: yes, except on some FUSE file systems."""
        return not self.is_fuse or self.kind in _WRITE_THROUGH_FUSE


@dataclass(frozen=True)
class RcloneServer:
    """The rclone process of a mount."""

    cache_dir: str | None  # None: writes are not cached
    rc_socket: str | None  # of its remote control; None if that is not a unix socket


@dataclass(frozen=True)
class _Process:
    """A process, told apart from later ones with its number."""

    pid: str
    started: bytes  # clock ticks since the boot


def source_at(path: str, table: Iterable[MountEntry]) -> str | None:
    """What is mounted exactly at `path` according to `table` (as of `entries`), or None."""
    mountpoints, source = {os.path.abspath(path), os.path.realpath(path)}, None
    for entry in table:
        if entry.path in mountpoints:
            source = entry.source  # the last of several covers the others
    return source


def find_mount_entry(path: str, table: Iterable[MountEntry]) -> MountEntry | None:
    """The mount in `table` (as of `entries`) that `path` lies on; None if there is none."""
    location, holder = os.path.realpath(path), None
    for entry in table:
        if location == entry.path or location.startswith(entry.path.rstrip("/") + "/"):
            holder = entry if holder is None or len(entry.path) >= len(holder.path) else holder
    return holder


def find_server(entry: MountEntry) -> RcloneServer | None:
    """The rclone that serves this mount; None for other file systems, and if its process cannot be seen from here, or
    several processes may be it."""
    if entry.kind != _RCLONE:
        return None
    search = _servers.get(entry)
    if search is None or time.monotonic() - search.at_s > _SERVER_CACHE_S or not search.is_current():
        search = _find_servers(entry.path)
        _servers[entry] = search
    return search.servers[0] if len(search.servers) == 1 else None


@dataclass(frozen=True)
class _Search:
    """The rclone processes that name a mountpoint, as they were found."""

    at_s: float  # monotonic
    processes: tuple[_Process, ...]
    servers: tuple[RcloneServer, ...]  # without repetition

    def is_current(self) -> bool:
        """Whether the same processes still run: another one may have been started for the mountpoint since."""
        return all(_started(process.pid) == process.started for process in self.processes)


_servers: dict[MountEntry, _Search] = {}


def _find_servers(mountpoint: str) -> _Search:
    servers: dict[_Process, RcloneServer] = {}
    for pid in _processes():
        started, server = _started(pid), _parse_server(pid, mountpoint)
        if server is not None:
            servers[_Process(pid, started)] = server
    return _Search(time.monotonic(), tuple(servers), tuple(dict.fromkeys(servers.values())))


def _started(pid: str) -> bytes:
    """When the process was started; empty if it does not run."""
    try:
        with open(os.path.join(_PROC, pid, "stat"), "rb") as file:
            return file.read().rpartition(b")")[2].split()[19]
    except (OSError, IndexError):
        return b""


def entries() -> Iterator[MountEntry]:
    """Every mount that this process can see, oldest first; none where the table cannot be read."""
    try:
        with open(_TABLE, encoding="utf-8", errors="surrogateescape") as table:
            lines = table.readlines()
    except OSError:
        return
    for line in lines:
        mount, _, filesystem = line.partition(" - ")
        kind, source = filesystem.split(" ")[:2]
        number, _, device, _, path = mount.split(" ")[:5]
        yield MountEntry(_unescaped(path), kind, _unescaped(source), f"{number} {device}")


def _unescaped(field: str) -> str:
    """The kernel writes spaces, tabs, newlines, backslashes and `#` as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), field)


def _processes() -> Iterator[str]:
    try:
        yield from (name for name in os.listdir(_PROC) if name.isdigit())
    except OSError:
        return


def _parse_server(pid: str, mountpoint: str) -> RcloneServer | None:
    """The process as the server of `mountpoint`, or None if it does not serve that."""
    folder = os.path.join(_PROC, pid)
    try:
        words = _words(os.path.join(folder, "cmdline"))
        if not words or os.path.basename(words[0]) != "rclone" or "mount" not in words:
            return None
        working_directory = os.readlink(os.path.join(folder, "cwd"))
        if all(os.path.realpath(os.path.join(working_directory, word)) != mountpoint for word in words[2:]):
            return None
        environment = dict(word.partition("=")[::2] for word in _words(os.path.join(folder, "environ")))
    except OSError:
        return None
    flags = _flag_values(words, environment)
    mode, socket = flags["--vfs-cache-mode"].lower(), flags["--rc-addr"]  # rclone ignores the case of a mode
    if mode not in _CACHING + _NOT_CACHING or _has_no_modtime(words, environment):
        return None
    return RcloneServer(
        cache_dir=_cache_dir(flags["--cache-dir"], environment) if mode in _CACHING else None,
        rc_socket=socket[len("unix://") :] if socket.startswith("unix://") else None,
    )


_CACHING = ("minimal", "writes", "full", "1", "2", "3")
_NOT_CACHING = ("", "off", "0")


def _has_no_modtime(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    values = [environment.get("RCLONE_NO_MODTIME", "false")]
    values += [word.partition("=")[2] or "true" for word in words if word.partition("=")[0] == _NO_MODTIME]
    return values[-1].lower() not in ("false", "f", "0")


def _words(path: str) -> list[str]:
    with open(path, "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0") if word]


def _flag_values(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The value of each flag on the command line, else in rclone's environment, else empty."""
    values = {flag: environment.get("RCLONE_" + flag[2:].replace("-", "_").upper(), "") for flag in _FLAGS}
    for word, following in zip(words, [*words[1:], ""]):
        flag, equals, value = word.partition("=")
        if flag in values:
            values[flag] = value if equals else following
    return values


def _cache_dir(flag: str, environment: Mapping[str, str]) -> str:
    if flag:
        return flag
    home = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME", "/"), ".cache")
    return os.path.join(home, "rclone")
