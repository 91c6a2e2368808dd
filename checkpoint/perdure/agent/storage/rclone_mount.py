"""One bucket mounted at one path with `rclone mount`: mounting, adopting, checking, unmounting."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from perdure.agent.storage import periodic_flush
from perdure.agent.storage.durability_watcher import BucketMount
from perdure.agent.storage.flush import PERMANENT_ERROR, CannotFlush, clean_error
from perdure.agent.storage.fuse import is_dead, is_rclone_of, may_allow_other, mount_guard, mounts_by_path, unmount_ours
from perdure.agent.storage.periodic_flush import PeriodicFlush
from perdure.agent.storage.rclone import MountProcess, Remote
from perdure.agent.storage.vfs_cache import VfsCache
from perdure.checkpoint.durability.rclone_rc import Rc, RcError

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
    """A bucket cannot be mounted at its path. The message says why and what to do.

    `is_transient`: the store did not answer properly, and may do so later.
    """

    def __init__(self, message: str, *, is_transient: bool = False) -> None:
        super().__init__(message)
        self.is_transient = is_transient


def store_error(where: str, text: str) -> MountError:
    """The MountError for a store's error message, as rclone returns it."""
    is_transient = not PERMANENT_ERROR.search(text) and "no space left" not in text
    return MountError(f"{where}: {clean_error(text)}", is_transient=is_transient)


def real_path(path: str) -> str:
    """The path as the kernel names it. Raises MountError for a relative path (after `~` is expanded).

    Does not access the mount itself: a mount whose server hangs would block the caller.
    """
    expanded = os.path.expanduser(path)
    if not os.path.isabs(expanded):
        raise MountError(f"mounting at {path}: the path is relative: write it from / or ~")
    parent, name = os.path.split(os.path.abspath(expanded))
    resolved = os.path.join(os.path.realpath(parent), name)
    return resolved if resolved in mounts_by_path() else os.path.realpath(resolved)


def prepare_mountpoint(path: str, *, shown: str) -> None:
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
    """A bucket at a path. `home` is a directory of this mount alone; both outlive the agent.

    The cache in `home` holds the files not yet uploaded: a new mount on the same `home` uploads them.
    """

    state = "mounted"

    def __init__(self, spec: Mapping[str, Any], *, home: Path, binary: Path) -> None:
        # The name identifies this mount in the kernel's mount table.
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
        self._flush_every_s = periodic_flush.interval_s(_options(spec)) if self.is_cached else None
        self._bucket_id: tuple[int, int] | None = None
        self.cache = VfsCache(home / "cache", remote.target)
        self._process = self._process_at(self._at)

    @property
    def is_cached(self) -> bool:
        return self.mode == "MOUNT_CACHED"

    @property
    def rc(self) -> Rc:
        return self._process.rc

    def mount(self) -> bool:
        """Mount, or adopt the living mount of an earlier agent (False). Raises MountError, and then leaves no mount."""
        self._bucket_id = self._find_bucket()
        self._process = self._process_at(self._at)
        if self._process.adopt():
            if self._is_mounted_at(self._at):
                return False
            self._process.stop()
        unmount_ours(self._rescue_path, self._remote.name)
        unmount_ours(self._at, self._remote.name)
        self._refuse_foreign_mount()
        prepare_mountpoint(self._at, shown=self.path)
        mount_guard(self._at)
        try:
            self._start()
        except MountError:
            self.unmount()
            raise
        return True

    def _process_at(self, mountpoint: str) -> MountProcess:
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        return MountProcess(self._binary, self._remote, home=self._home, mountpoint=mountpoint, flags=self._flags)

    def _start(self) -> None:
        self.cache.repair_records()
        self._start_process()
        if self.is_cached:
            self._check_version()
            self._consolidate_cache()
        if self._remote.bucket_dir is None:
            self._check_bucket()

    def _start_process(self) -> None:
        try:
            self._process.start()
        except OSError as error:
            raise MountError(f"mounting {self.bucket} at {self.path}: starting rclone: {error}") from error
        if not self._process.wait_ready(lambda: self._is_mounted_at(self._at), timeout_s=READY_S):
            raise MountError(f"mounting {self.bucket} at {self.path}: rclone says: {self._process.last_error()}")

    def _consolidate_cache(self) -> None:
        """Restart rclone on a consolidated cache if its settings, and so the cache's name, have changed."""
        entry = mounts_by_path().get(self._at)
        name = entry.source.partition(":")[0] if entry is not None else ""
        if name and self.cache.needs_consolidation(name):
            self._process.stop()
            unmount_ours(self._at, self._remote.name)  # and the guard
            self.cache.consolidate(name)
            mount_guard(self._at)
            self._start_process()

    def _check_version(self) -> None:
        try:
            self.rc.call("vfs/queue")
        except RcError as error:
            raise MountError(
                f"mounting {self.bucket} at {self.path}: {self._binary} cannot be queried for its uploads ({error}): "
                "install rclone 1.68 or newer"
            ) from error

    def _find_bucket(self) -> tuple[int, int] | None:
        """The identity of a local store's bucket directory, to notice one that was created again."""
        directory = self._remote.bucket_dir
        if directory is None:
            return None
        if not directory.is_dir():
            raise MountError(f"mounting {self.bucket} at {self.path}: there is no bucket {directory}: create it first")
        status = directory.stat()
        return (status.st_dev, status.st_ino)

    def _check_bucket(self) -> None:
        """Raise MountError for a missing bucket, which rclone would mount as an empty one: "nothing saved yet"."""
        url = self._remote.bucket_url
        try:
            self._list(url)
        except RcError as error:
            if _FORBIDDEN.search(str(error)) and url != self._remote.url:
                return self._check_prefix()  # a policy may allow only the prefix
            if "directory not found" in str(error):
                raise MountError(
                    f"mounting {self.bucket} at {self.path}: the bucket does not exist: create it, or correct its name"
                ) from error
            raise store_error(f"mounting {self.bucket} at {self.path}: listing the bucket", str(error)) from error

    def _check_prefix(self) -> None:
        try:
            self._list(self._remote.url)
        except RcError as error:
            if "directory not found" not in str(error):  # an empty prefix is no error
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
            if not stats.get("listed"):  # a bucket that is too large to list in time does answer
                server = self._remote.options.get("endpoint", "the store")
                text = f": {stats['lastError']}" if stats.get("lastError") else ""
                raise RcError(f"{server} did not answer within {READY_S:.0f} s{text}") from error

    def _refuse_foreign_mount(self) -> None:
        entry = mounts_by_path().get(self._at)
        if entry is not None and (entry.kind.startswith("fuse") or is_dead(self._at)):
            raise MountError(
                f"mounting {self.bucket} at {self.path}: {entry.source} ({entry.kind}) is mounted there already: "
                "choose another path, or unmount it"
            )

    def _is_mounted_at(self, path: str) -> bool:
        return is_rclone_of(mounts_by_path().get(path), self._remote.name)

    @property
    def _rescue_path(self) -> str:
        return os.path.realpath(self._rescue)

    def is_lost(self) -> bool:
        """Whether the bucket is not mounted at its path. Cheap."""
        return not (self._process.mountpoint == self._at and self._process.is_alive() and self._is_mounted_at(self._at))

    def is_dead(self) -> bool:
        """Whether an access to the path fails because its server process died. Blocks while that hangs."""
        return is_dead(self._at)

    def as_bucket_mount(self) -> BucketMount:
        named = os.path.abspath(os.path.expanduser(self.path))
        return BucketMount((named, self._at), self.cache if self.is_cached else None, self.is_lost)

    def pending_uploads(self) -> int:
        """The number of files that wait for their upload or are being uploaded. Cheap while rclone lives."""
        if not self.is_cached:
            return 0
        try:
            stats = self.rc.call("vfs/stats")["diskCache"]
        except RcError:
            return len(self.cache.dirty_files())
        return int(stats["uploadsQueued"]) + int(stats["uploadsInProgress"])

    def periodic_flush(self, log: Callable[[str], None]) -> PeriodicFlush | None:
        """What uploads files that stay in use, not started yet; None if nothing does."""
        if self._flush_every_s is None:
            return None
        cache = VfsCache(self.cache.directory, self._remote.target)
        copies = self._home / "copies"
        return PeriodicFlush(self, self._remote.url, cache, copies, every_s=self._flush_every_s, log=log)

    # The rest implements `flush.Flushable`.

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def restart_rclone(self) -> None:
        """Run rclone on the cache again, mounted in `home`: dirty files are uploaded, while `path` stays lost."""
        self._process.stop()
        unmount_ours(self._rescue_path, self._remote.name)
        self._rescue.mkdir(exist_ok=True)
        self._process = self._process_at(self._rescue_path)
        self.cache.repair_records()
        try:
            self._process.start()
        except OSError as error:
            raise CannotFlush(f"starting rclone again: {error}") from error
        if not self._process.wait_ready(lambda: self._is_mounted_at(self._rescue_path), timeout_s=READY_S):
            raise CannotFlush(f"starting rclone again: {self._process.last_error()}")

    def bucket_problem(self) -> str | None:
        """Set if a local store's directory was removed: rclone would create it again, and the upload would succeed."""
        if self._bucket_id is None:
            return None
        try:
            same = self._find_bucket() == self._bucket_id
        except MountError:
            same = False
        return None if same else f"the bucket {self._remote.bucket_dir} was removed"

    def unmount(self) -> None:
        """End the mount and its process, whichever agent started it. Files not uploaded stay in `home`."""
        self._process.stop()  # first: it unmounts by itself, and a hung one would block the unmount
        for path in (self._at, self._rescue_path):
            unmount_ours(path, self._remote.name)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self.rc.socket_path))
        if not self.cache.dirty_files() and not self._holds_a_mount():
            shutil.rmtree(self._home, ignore_errors=True)

    def _holds_a_mount(self) -> bool:
        """Whether something is mounted in `home`: removing it would delete files of a bucket."""
        home = os.path.realpath(self._home)
        return any(path == home or path.startswith(home + "/") for path in mounts_by_path())


def _options(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {**_CACHED_DEFAULTS, **(spec.get("options") or {})}


def _flags(spec: Mapping[str, Any], *, cached: bool) -> list[str]:
    options = dict(spec.get("options") or {})
    options.pop("flush_every", None)  # of `periodic_flush`, not of rclone
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
            options["vfs_write_back"] = "10ms"  # with 0, rclone uploads within close() and forgets a failed upload
        flags += ["--vfs-cache-poll-interval", "10s", "--vfs-fast-fingerprint"]
    for name, value in options.items():
        flags += [_OPTION_FLAGS[name], str(value)]
    if may_allow_other():
        flags.append("--allow-other")
    if read_only:
        flags.append("--read-only")
    return flags
