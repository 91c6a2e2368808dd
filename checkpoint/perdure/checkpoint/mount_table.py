"""What is mounted where, by the kernel's own table; and which rclone serves a mount, and with what flags.

A checkpoint is often written to a mount that no agent made: a user's own rclone, or another launcher's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_TABLE = "/proc/self/mountinfo"
_PROC = "/proc"
_RCLONE = "fuse.rclone"
# Of FUSE's file systems, those that have stored a file for good when fsync and close return: disks of this machine, and
# buckets that are written to before close returns.
_FUSE_THAT_STORES = frozenset({"fuseblk", "fuse.fuse-overlayfs", "fuse.gcsfuse", "fuse.goofys", "fuse.blobfuse2"})
_FRESH_S = 10.0  # how long the answer to "who serves this mount" is good for
# Boolean flags of `rclone mount` take no second word; of those that do, only these matter here.
_FLAGS = ("--cache-dir", "--vfs-cache-mode", "--rc-addr")


@dataclass(frozen=True)
class Mounted:
    """One line of the table: mountpoint, type of the file system, and what is mounted (`remote:folder` for rclone)."""

    path: str
    kind: str
    source: str

    @property
    def is_fuse(self) -> bool:
        return self.kind.startswith("fuse") and self.kind != "fusectl"

    @property
    def stores(self) -> bool:
        """Whether what was flushed to it is where it outlives this process: everywhere, but for some of FUSE."""
        return not self.is_fuse or self.kind in _FUSE_THAT_STORES


@dataclass(frozen=True)
class Server:
    """The rclone of a mount. `cache_dir` None: writes are not cached. `rc_socket`: its remote control, if by socket."""

    cache_dir: str | None
    rc_socket: str | None


def source_at(path: str) -> str | None:
    """What is mounted exactly at `path`, or None."""
    wanted, source = {os.path.abspath(path), os.path.realpath(path)}, None
    for mounted in _lines():
        if mounted.path in wanted:
            source = mounted.source  # the last of several covers the others
    return source


def holder_of(path: str) -> Mounted | None:
    """The mount that `path` lies on; None where the table can not be read."""
    place, found = os.path.realpath(path), None
    for mounted in _lines():
        if place == mounted.path or place.startswith(mounted.path.rstrip("/") + "/"):
            found = mounted if found is None or len(mounted.path) >= len(found.path) else found
    return found


def server_of(mounted: Mounted) -> Server | None:
    """The rclone that serves this mount; None for other file systems, and where it can not be seen from here."""
    if mounted.kind != _RCLONE:
        return None
    at_s, known = _servers.get(mounted, (float("-inf"), None))
    if time.monotonic() - at_s > _FRESH_S:
        known = next(filter(None, (_server(pid, mounted.path) for pid in _processes())), None)
        _servers[mounted] = (time.monotonic(), known)
    return known


_servers: dict[Mounted, tuple[float, Server | None]] = {}


def _lines() -> Iterator[Mounted]:
    try:
        with open(_TABLE, encoding="utf-8", errors="surrogateescape") as table:
            lines = table.readlines()
    except OSError:
        return
    for line in lines:
        mount, _, filesystem = line.partition(" - ")
        kind, source = filesystem.split(" ")[:2]
        yield Mounted(_unescaped(mount.split(" ")[4]), kind, _unescaped(source))


def _unescaped(field: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field


def _processes() -> Iterator[str]:
    try:
        yield from (name for name in os.listdir(_PROC) if name.isdigit())
    except OSError:
        return


def _server(pid: str, mountpoint: str) -> Server | None:
    """The process as the server of `mountpoint`, or None when it is something else."""
    folder = os.path.join(_PROC, pid)
    try:
        words = _words(os.path.join(folder, "cmdline"))
        if not words or os.path.basename(words[0]) != "rclone" or "mount" not in words:
            return None
        here = os.readlink(os.path.join(folder, "cwd"))
        if all(os.path.realpath(os.path.join(here, word)) != mountpoint for word in words[2:]):
            return None
        environment = dict(word.partition("=")[::2] for word in _words(os.path.join(folder, "environ")))
    except OSError:
        return None
    said = _said(words, environment)
    socket = said["--rc-addr"]
    return Server(
        cache_dir=_cache_dir(said["--cache-dir"], environment) if said["--vfs-cache-mode"] in _CACHING else None,
        rc_socket=socket[len("unix://") :] if socket.startswith("unix://") else None,
    )


_CACHING = ("minimal", "writes", "full", "1", "2", "3")


def _words(path: str) -> list[str]:
    with open(path, "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0") if word]


def _said(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """What the command line, else rclone's environment, says of each flag; empty where nothing does."""
    said = {flag: environment.get("RCLONE_" + flag[2:].replace("-", "_").upper(), "") for flag in _FLAGS}
    for word, following in zip(words, [*words[1:], ""]):
        flag, equals, value = word.partition("=")
        if flag in said:
            said[flag] = value if equals else following
    return said


def _cache_dir(said: str, environment: Mapping[str, str]) -> str:
    if said:
        return said
    home = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME", "/"), ".cache")
    return os.path.join(home, "rclone")
