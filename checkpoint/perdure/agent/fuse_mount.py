"""One bucket standing at one path by way of `rclone mount`: made, adopted, watched, taken away.

`MountError` is raised with what is wrong and what to do.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.agent.flush import CAN_NOT_PASS, CannotFlush, plain
from perdure.agent.fuse import is_dead, is_rclone_of, mount_table, others_allowed, put_guard, take_away
from perdure.agent.rclone import MountProcess, Remote
from perdure.agent.vfs_cache import Cache
from perdure.checkpoint.rc import Rc, RcError

READY_S = 30.0
_OPTION_FLAGS = {
    "transfers": "--transfers",
    "buffer_size": "--buffer-size",
    "vfs_cache_max_size": "--vfs-cache-max-size",
    "vfs_cache_max_age": "--vfs-cache-max-age",
    "vfs_read_ahead": "--vfs-read-ahead",
    "vfs_read_chunk_size": "--vfs-read-chunk-size",
    "vfs_read_chunk_streams": "--vfs-read-chunk-streams",
    "vfs_write_back": "--vfs-write-back",
}
_CACHED_DEFAULTS = {"vfs_cache_max_size": "10G", "vfs_write_back": "1s"}
_FORBIDDEN = re.compile("StatusCode: 403|googleapi: Error 403|RESPONSE 403")
_ZERO_DURATION = re.compile(r"(0+(\.0*)?[a-zµ]*)+")


class MountError(Exception):
    """A bucket can not stand at its path. The message says why and what to do.

    `may_pass`: the store did not answer as it should, and may do so later.
    """

    def __init__(self, message: str, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


def store_error(where: str, said: str) -> MountError:
    """What a store's words, as rclone passes them on, come to."""
    may_pass = not CAN_NOT_PASS.search(said) and "no space left" not in said
    return MountError(f"{where}: {plain(said)}", may_pass=may_pass)


def real_path(path: str) -> str:
    """The path as the kernel names it. Raises MountError for one that is not absolute (after `~`).

    Does not touch what is mounted there: looking at a mount whose server hangs would hang with it.
    """
    expanded = os.path.expanduser(path)
    if not os.path.isabs(expanded):
        raise MountError(f"mounting at {path}: the path is relative: write it from / or ~")
    parent, name = os.path.split(os.path.abspath(expanded))
    resolved = os.path.join(os.path.realpath(parent), name)
    return resolved if resolved in mount_table() else os.path.realpath(resolved)


def usable_target(path: str, *, shown: str) -> None:
    """Make `path` an empty directory, or raise MountError: mounting over files would hide them from the workload."""
    try:
        os.makedirs(path, exist_ok=True)
        content = sorted(os.listdir(path))
    except OSError as error:
        raise MountError(f"mounting at {shown}: {error.strerror}: choose a path that can be a directory") from error
    if content:
        raise MountError(
            f"mounting at {shown}: the directory is not empty (it holds {content[0]}): "
            "choose another path, or move what is there away"
        )


class FuseMount:
    """A bucket at a path. `home` is a directory of this mount alone; it outlives the agent, and so does the mount.

    The cache in `home` holds what is not uploaded yet: a mount that is made again on the same `home` uploads it.
    """

    state = "mounted"

    def __init__(self, spec: Mapping[str, Any], *, home: Path, binary: Path) -> None:
        # The name tells this mount from every other one in the table of mounts.
        remote = Remote.from_spec(spec, name="perdure" + hashlib.sha256(os.fsencode(home)).hexdigest()[:12])
        self.path = str(spec["path"])
        self.mode = str(spec["mode"])
        self.bucket = remote.bucket
        self._at = real_path(self.path)
        self._remote = remote
        self._home = home
        self._binary = binary
        self._rescue = home / "rescue"
        self._flags = _flags(spec, cached=self.is_cached)
        self._bucket_id: tuple[int, int] | None = None
        self.cache = Cache(home / "cache", remote.target)
        self._process = self._process_at(self._at)

    @property
    def is_cached(self) -> bool:
        return self.mode == "MOUNT_CACHED"

    @property
    def rc(self) -> Rc:
        return self._process.rc

    def up(self) -> None:
        """Mount, or adopt the living mount of an earlier agent. Raises MountError and leaves no mount behind."""
        self._bucket_id = self._find_bucket()
        self._process = self._process_at(self._at)
        if self._process.adopt():
            if self._stands_at(self._at):
                return
            self._process.stop()
        take_away(self._rescue_path, self._remote.name)
        take_away(self._at, self._remote.name)
        self._refuse_foreign_mount()
        usable_target(self._at, shown=self.path)
        put_guard(self._at)
        try:
            self._start()
        except MountError:
            self.down()
            raise

    def _process_at(self, mountpoint: str) -> MountProcess:
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        return MountProcess(self._binary, self._remote, home=self._home, mountpoint=mountpoint, flags=self._flags)

    def _start(self) -> None:
        self.cache.repair()
        self._start_process()
        if self.is_cached:
            self._check_version()
            self._gather_cache()
        if self._remote.bucket_dir is None:
            self._check_bucket()

    def _start_process(self) -> None:
        try:
            self._process.start()
        except OSError as error:
            raise MountError(f"mounting {self.bucket} at {self.path}: starting rclone: {error}") from error
        if not self._process.wait_ready(lambda: self._stands_at(self._at), timeout_s=READY_S):
            raise MountError(f"mounting {self.bucket} at {self.path}: rclone says: {self._process.last_words()}")

    def _gather_cache(self) -> None:
        """rclone's settings, and so its name of the cache, may have changed since files were written there."""
        entry = mount_table().get(self._at)
        name = entry.source.partition(":")[0] if entry is not None else ""
        if name and self.cache.is_scattered(name):
            self._process.stop()
            take_away(self._at, self._remote.name)  # and the guard
            self.cache.gather(name)
            put_guard(self._at)
            self._start_process()

    def _check_version(self) -> None:
        try:
            self.rc.call("vfs/queue")
        except RcError as error:
            raise MountError(
                f"mounting {self.bucket} at {self.path}: {self._binary} can not be asked about its uploads ({error}): "
                "install rclone 1.68 or newer"
            ) from error

    def _find_bucket(self) -> tuple[int, int] | None:
        """Which directory a local store's bucket is, so that one made anew under the same name is noticed."""
        directory = self._remote.bucket_dir
        if directory is None:
            return None
        if not directory.is_dir():
            raise MountError(f"mounting {self.bucket} at {self.path}: there is no bucket {directory}: create it first")
        found = directory.stat()
        return (found.st_dev, found.st_ino)

    def _check_bucket(self) -> None:
        """A missing bucket mounts without an error and looks empty, which would read as "nothing saved yet"."""
        url = self._remote.bucket_url
        try:
            self._list(url)
        except RcError as error:
            if _FORBIDDEN.search(str(error)) and url != self._remote.url:
                return self._check_prefix()  # a policy may allow the prefix alone
            if "directory not found" in str(error):
                raise MountError(
                    f"mounting {self.bucket} at {self.path}: the bucket does not exist: create it, or correct its name"
                ) from error
            raise store_error(f"mounting {self.bucket} at {self.path}: listing the bucket", str(error)) from error

    def _check_prefix(self) -> None:
        try:
            self._list(self._remote.url)
        except RcError as error:
            if "directory not found" not in str(error):  # nothing under the prefix yet is no error
                raise store_error(f"mounting {self.bucket} at {self.path}: listing the bucket", str(error)) from error

    def _list(self, url: str) -> None:
        try:
            self.rc.call(
                "operations/list", timeout_s=READY_S, fs=url, remote="", opt={"noModTime": True, "noMimeType": True}
            )
        except RcError as error:
            if not isinstance(error.__cause__, TimeoutError):
                raise
            stats = self.rc.call("core/stats")
            if not stats.get("listed"):  # a bucket too large to list in time does answer
                server = self._remote.options.get("endpoint", "the store")
                said = f": {stats['lastError']}" if stats.get("lastError") else ""
                raise RcError(f"{server} did not answer within {READY_S:.0f} s{said}") from error

    def _refuse_foreign_mount(self) -> None:
        entry = mount_table().get(self._at)
        if entry is not None and (entry.kind.startswith("fuse") or is_dead(self._at)):
            raise MountError(
                f"mounting {self.bucket} at {self.path}: {entry.source} ({entry.kind}) is mounted there already: "
                "choose another path, or unmount it"
            )

    def _stands_at(self, path: str) -> bool:
        return is_rclone_of(mount_table().get(path), self._remote.name)

    @property
    def _rescue_path(self) -> str:
        return os.path.realpath(self._rescue)

    def lost(self) -> bool:
        """Whether the bucket does not stand at its path. Cheap."""
        return not (self._process.mountpoint == self._at and self._process.alive() and self._stands_at(self._at))

    def pending(self) -> int:
        """How many files wait for their upload or are being uploaded. Cheap while rclone lives."""
        if not self.is_cached:
            return 0
        try:
            stats = self.rc.call("vfs/stats")["diskCache"]
        except RcError:
            return len(self.cache.dirty())
        return int(stats["uploadsQueued"]) + int(stats["uploadsInProgress"])

    # What flushing asks for (`flush.Flushable`)

    def alive(self) -> bool:
        return self._process.alive()

    def revive(self) -> None:
        """Run rclone on the cache again, mounted in `home`: what is dirty gets uploaded, and `path` stays lost."""
        self._process.stop()
        take_away(self._rescue_path, self._remote.name)
        self._rescue.mkdir(exist_ok=True)
        self._process = self._process_at(self._rescue_path)
        self.cache.repair()
        try:
            self._process.start()
        except OSError as error:
            raise CannotFlush(f"starting rclone again: {error}") from error
        if not self._process.wait_ready(lambda: self._stands_at(self._rescue_path), timeout_s=READY_S):
            raise CannotFlush(f"starting rclone again: {self._process.last_words()}")

    def bucket_problem(self) -> str | None:
        """rclone would make a local store's missing directory anew and call the upload a success."""
        if self._bucket_id is None:
            return None
        try:
            same = self._find_bucket() == self._bucket_id
        except MountError:
            same = False
        return None if same else f"the bucket {self._remote.bucket_dir} was removed"

    def down(self) -> None:
        """Take the mount and its process away, whoever started it. What is not uploaded stays in `home`."""
        self._process.stop()  # first: it unmounts by itself, and a hung one would hold the unmounting up
        for path in (self._at, self._rescue_path):
            take_away(path, self._remote.name)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self.rc.socket_path))
        if not self.cache.dirty() and not self._holds_a_mount():
            shutil.rmtree(self._home, ignore_errors=True)

    def _holds_a_mount(self) -> bool:
        """Whether removing `home` would reach into a bucket."""
        home = os.path.realpath(self._home)
        return any(path == home or path.startswith(home + "/") for path in mount_table())


def _flags(spec: Mapping[str, Any], *, cached: bool) -> list[str]:
    options = dict(spec.get("options") or {})
    read_only = bool(options.pop("read_only", False) or spec.get("read_only"))
    unknown = sorted(set(options) - set(_OPTION_FLAGS))
    if unknown:
        raise MountError(
            f"mounting at {spec['path']}: unknown option {unknown[0]}: known are {', '.join(_OPTION_FLAGS)}"
        )
    flags = ["--allow-non-empty", "--dir-cache-time", "10s", "--vfs-cache-mode", "full" if cached else "off"]
    if cached:
        options = {**_CACHED_DEFAULTS, **options}
        if _ZERO_DURATION.fullmatch(str(options["vfs_write_back"])):
            options["vfs_write_back"] = "10ms"  # with 0 rclone uploads within close() and forgets an upload that fails
        flags += ["--vfs-cache-poll-interval", "10s", "--vfs-fast-fingerprint"]
    for name, value in options.items():
        flags += [_OPTION_FLAGS[name], str(value)]
    if others_allowed():
        flags.append("--allow-other")
    if read_only:
        flags.append("--read-only")
    return flags
