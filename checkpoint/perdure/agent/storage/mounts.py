"""Makes the buckets of a node spec's `mounts` available at their paths.

The modes:

* `MOUNT_CACHED`: `rclone mount` with a full write-back cache. Writes are as fast as the local disk; `flush` brings them
  into the bucket. Every kind of file access works.
* `MOUNT`: `rclone mount` without a cache (`--vfs-cache-mode off`). Files are written once, from start to end; close()
  returns when the object is in the bucket and fails otherwise, so there is never anything to flush. Appending, seeking
  while writing, and opening for both reading and writing are refused.
* `COPY`: the bucket's content is copied to the path before the workload starts. One object is copied to a file.

Without rclone or FUSE, a local store's bucket becomes a symbolic link to its directory in the modes MOUNT and
MOUNT_CACHED. A cloud's bucket becomes a folder that is uploaded (`synced`) in the mode MOUNT_CACHED, where one
node alone uses it; otherwise MountError says what to install.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from perdure.agent.storage.durability_watcher import BucketMount
from perdure.agent.storage.flush import FlushError, flush
from perdure.agent.storage.fuse import fuse_problem
from perdure.agent.storage.periodic_flush import PeriodicFlush
from perdure.agent.storage.rclone import Remote
from perdure.agent.storage.rclone_mount import FuseMount, MountError, prepare_mountpoint, real_path, store_error
from perdure.agent.storage.synced.synced_folder import SyncedFolder
from perdure.agent.storage.token_server import TokenServer, no_renewal
from perdure.agent.storage.vfs_cache import PendingFile

__all__ = ["FlushError", "MountError", "Mounts", "fuse_problem"]

MODES = ("COPY", "MOUNT", "MOUNT_CACHED")


class _BucketAtPath(Protocol):
    """A bucket at a path: mounted, linked or copied."""

    path: str
    mode: str
    state: str  # in the report, unless it is lost

    def mount(self) -> bool: ...  # False: a mount that an earlier agent left works, and is kept
    def is_lost(self) -> bool: ...
    def is_dead(self) -> bool: ...
    def pending_uploads(self) -> int: ...
    def unmount(self) -> None: ...
    def as_bucket_mount(self) -> BucketMount | None: ...


class Mounts:
    """All mounts of one node. One thread at a time may call its methods, unless they say otherwise.

    `state_dir` outlives the agent: caches and control sockets are stored there. `rclone`: the binary, or None if there
    is none (yet): the attribute may be set until `mount_all` is called. `log` takes lines for the job's log. `renew`:
    as in `TokenServer`, called from other threads. `new_paths`: what `mount_all` mounted, without what it adopted.
    `is_shared`: other nodes must see what this one writes.
    """

    def __init__(
        self,
        specs: Sequence[Mapping[str, Any]],
        *,
        state_dir: Path,
        rclone: Path | None,
        log: Callable[[str], None],
        renew: Callable[[str], Mapping[str, Any]] = no_renewal,
        is_shared: bool = True,
    ) -> None:
        self.rclone = rclone
        self._is_shared = is_shared
        self._tokens = TokenServer(state_dir / "mounts", renew)
        self._specs = sorted(specs, key=lambda spec: str(spec["path"]))  # /a before /a/b
        self._state_dir = state_dir
        self._log = log
        self._fuse_problem = fuse_problem()
        self._buckets: list[_BucketAtPath] = []
        self._periodic_flushes: list[PeriodicFlush] = []
        self.new_paths: list[str] = []

    @property
    def needs_rclone(self) -> bool:
        """Whether `mount_all` would use rclone."""
        return any(
            spec["rclone"]["type"] != "local" or (spec["mode"] != "COPY" and self._fuse_problem is None)
            for spec in self._specs
        )

    def mount_all(self) -> None:
        """Mount every bucket at its path; existing mounts are kept, lost ones are mounted again.

        Mounts that an earlier agent left on the same `state_dir` are adopted. Where rclone died, its cache is used
        again, so that files it had not uploaded are uploaded now. Raises MountError at the first failure; `unmount_all`
        removes the mounts made until then.
        """
        if not self._buckets:
            self._buckets = [self._make(spec) for spec in self._specs]
        for bucket in self._buckets:
            if bucket.is_lost() and bucket.mount():
                self.new_paths.append(bucket.path)

    def refresh_folders(self) -> None:
        """Copy what other nodes have written since `mount_all` to the folders that are no mounts. Raises MountError."""
        for bucket in self._buckets:
            if isinstance(bucket, SyncedFolder):
                bucket.refresh()

    def _make(self, spec: Mapping[str, Any]) -> _BucketAtPath:
        spec = self._with_tokens(spec)
        remote = Remote.from_spec(spec)
        if spec["mode"] not in MODES:
            raise MountError(f"mounting at {spec['path']}: unknown mode {spec['mode']!r}: known are {', '.join(MODES)}")
        if spec["mode"] == "COPY":
            return _CopiedBucket(spec, remote, rclone=self.rclone)
        home = self._home_of(spec)
        if self.rclone is not None and self._fuse_problem is None:
            return FuseMount(spec, home=home, binary=self.rclone)
        reason = self._fuse_problem or "there is no rclone on this node"
        if remote.bucket_dir is None:
            return self._make_folder(spec, remote, home, reason)
        return _LinkedBucket(spec, remote, home=home, reason=reason, log=self._log)

    def _make_folder(self, spec: Mapping[str, Any], remote: Remote, home: Path, reason: str) -> SyncedFolder:
        if spec["mode"] == "MOUNT_CACHED" and self.rclone is not None and not self._is_shared:
            return SyncedFolder(spec, home=home, binary=self.rclone, reason=reason, log=self._log)
        raise MountError(f"mounting bucket {remote.bucket} at {spec['path']}: {reason}")

    def _with_tokens(self, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        if "expires_at" not in spec["rclone"]:
            return spec
        return {**spec, "rclone": self._tokens.options(str(spec["path"]), spec["rclone"])}

    def _home_of(self, spec: Mapping[str, Any]) -> Path:
        remote = Remote.from_spec(spec)
        key = hashlib.sha256(f"{spec['path']}\0{remote.kind}\0{remote.target}".encode()).hexdigest()[:12]
        return self._state_dir.absolute() / "mounts" / key

    def flush(self, deadline: float | None = None) -> None:
        """Upload every cached write, also those of a lost mount. Safe to repeat.

        `deadline`: time of `clock`, or None. Raises FlushError as `flush.flush` does, after every bucket has had its
        turn. Call it when no process of the workload is left: it waits for files that are still open for writing.
        """
        mounted = [bucket for bucket in self._buckets if isinstance(bucket, FuseMount) and bucket.is_cached]
        folders = [bucket for bucket in self._buckets if isinstance(bucket, SyncedFolder)]
        with ThreadPoolExecutor(len(folders) + 1, thread_name_prefix="flush") as pool:
            flushes = [("cached mounts", pool.submit(flush, mounted, deadline=deadline, log=self._log))]
            flushes += [(folder.path, pool.submit(folder.flush, deadline)) for folder in folders]
        failed = [(name, error) for name, error in ((name, one.exception()) for name, one in flushes) if error]
        if failed:
            raise _joined(failed)

    def start_periodic_flushes(self, log: Callable[[str], None]) -> None:
        """From now on, upload files that stay in use (`periodic_flush`). `log`: the agent's own log."""
        if not self._periodic_flushes:
            cached = (bucket for bucket in self._buckets if isinstance(bucket, FuseMount) and bucket.is_cached)
            self._periodic_flushes = [one for one in (mount.periodic_flush(log) for mount in cached) if one is not None]
            for one in self._periodic_flushes:
                one.start()

    def stop_periodic_flushes(self, timeout_s: float) -> None:
        """End them, at most in `timeout_s` each: before the last flush, which an older copy must not follow."""
        for one in self._periodic_flushes:
            one.stop(timeout_s)

    def unmount_all(self) -> None:
        """Remove every mount and rclone process, also those of an earlier agent. Does not flush.

        A cache that still holds dirty files stays on the disk.
        """
        self.stop_periodic_flushes(0.0)
        for bucket in reversed(self._buckets or self._leftovers()):
            try:
                bucket.unmount()
            except OSError as error:
                self._log(f"unmounting {bucket.path}: {error}")
        self._buckets = []
        self._tokens.close()

    def _leftovers(self) -> list[_BucketAtPath]:
        leftovers: list[_BucketAtPath] = []
        for spec in self._specs:
            home = self._home_of(spec)
            if (home / "linked").exists():
                leftovers.append(_LinkedBucket(spec, Remote.from_spec(spec), home=home, reason="", log=self._log))
            elif (home / "synced").exists():
                binary = self.rclone or Path("rclone")
                leftovers.append(SyncedFolder(spec, home=home, binary=binary, reason="", log=self._log))
            elif home.exists():
                leftovers.append(FuseMount(spec, home=home, binary=self.rclone or Path("rclone")))
        return leftovers

    def lost_paths(self) -> list[str]:
        """Paths where a bucket is missing. Cheap: meant to be called every second after `mount_all`."""
        return [bucket.path for bucket in self._buckets if bucket.is_lost()]

    def dead_paths(self) -> list[str]:
        """Paths where every access fails, maybe a moment before `lost_paths` has them. Blocks where a mount hangs.

        From any thread.
        """
        return [bucket.path for bucket in self._buckets if bucket.is_dead()]

    def snapshot(self) -> list[dict[str, Any]]:
        """The `mounts` of a report. `pending`: closed files that wait for their upload. As cheap as `lost_paths`."""
        return [
            {
                "path": bucket.path,
                "mode": bucket.mode,
                "state": "lost" if bucket.is_lost() else bucket.state,
                "pending": bucket.pending_uploads(),
            }
            for bucket in self._buckets
        ]

    def describe(self) -> list[dict[str, Any]]:
        """The content of `mounts.json`: mounts and links, not copies.

        `cache_dir` and `rc_socket` are None if writes are not cached. `source` is there for an ordinary folder that is
        uploaded: the bucket, which the kernel's table of mounts does not have.
        """
        rows = []
        for bucket in self._buckets:
            if bucket.mode == "COPY":
                continue
            cached = bucket if isinstance(bucket, FuseMount) and bucket.is_cached else None
            row = {
                "path": bucket.path,
                "mode": bucket.mode,
                "cache_dir": str(cached.cache.directory) if cached else None,
                "rc_socket": cached.rc.socket_path if cached else None,
            }
            if isinstance(bucket, SyncedFolder):
                row |= {"cache_dir": str(bucket.cache.directory), "source": bucket.source}
            rows.append(row)
        return rows

    def bucket_mounts(self) -> list[BucketMount]:
        """The mounts and links, for the watcher of uploads. Copies are left out. From any thread."""
        return [mount for mount in (bucket.as_bucket_mount() for bucket in self._buckets) if mount is not None]


def _joined(failed: Sequence[tuple[str, BaseException]]) -> FlushError:
    """One error of all that failed, each with the path or the kind of its bucket."""
    texts: list[str] = []
    pending: dict[str, tuple[PendingFile, ...]] = {}
    for name, error in failed:
        texts.append(str(error) if isinstance(error, FlushError) else f"{name}: {type(error).__name__}: {error}")
        pending.update(error.pending if isinstance(error, FlushError) else {name: ()})
    return FlushError("; ".join(texts), pending)


class _LinkedBucket:
    """A local store's bucket, reached by a symbolic link. Writes are in the bucket at once."""

    state = "linked"

    def __init__(
        self, spec: Mapping[str, Any], remote: Remote, *, home: Path, reason: str, log: Callable[[str], None]
    ) -> None:
        self.path, self.mode = str(spec["path"]), str(spec["mode"])
        expanded = os.path.expanduser(self.path).rstrip("/")
        self._at = os.path.join(real_path(os.path.dirname(expanded)), os.path.basename(expanded))
        self._target = Path(remote.target)
        self._bucket = remote.bucket_dir or self._target
        self._marker = home / "linked"  # exists if the agent made the link and may remove it
        self._reason, self._log = reason, log

    def mount(self) -> bool:
        if not self._bucket.is_dir():
            raise MountError(f"mounting at {self.path}: there is no bucket {self._bucket}: create it first")
        self._target.mkdir(parents=True, exist_ok=True)
        if os.path.islink(self._at):
            if os.readlink(self._at) != str(self._target):
                raise MountError(f"mounting at {self.path}: it is a link to {os.readlink(self._at)}: remove it")
            return False
        prepare_mountpoint(self._at, shown=self.path)
        self._marker.parent.mkdir(parents=True, exist_ok=True)
        self._marker.touch()
        os.rmdir(self._at)
        os.symlink(self._target, self._at)
        self._log(f"{self.path} is a link to {self._target}, not a mount: {self._reason}")
        return True

    def is_lost(self) -> bool:
        with contextlib.suppress(OSError):
            return os.readlink(self._at) != str(self._target) or not self._target.is_dir()
        return True

    def is_dead(self) -> bool:
        return False

    def pending_uploads(self) -> int:
        return 0

    def as_bucket_mount(self) -> BucketMount:
        return BucketMount((os.path.abspath(self._at), str(self._target)), None, self.is_lost)

    def unmount(self) -> None:
        if self._marker.exists():
            if os.path.islink(self._at):
                os.unlink(self._at)
            shutil.rmtree(self._marker.parent, ignore_errors=True)


class _CopiedBucket:
    """A bucket's content, copied once."""

    state = "copied"

    def __init__(self, spec: Mapping[str, Any], remote: Remote, *, rclone: Path | None) -> None:
        self.path, self.mode = str(spec["path"]), "COPY"
        self._at = real_path(self.path)
        self._into_folder = self.path.endswith("/")
        self._remote = remote
        self._rclone = rclone
        self._done = False

    def mount(self) -> bool:
        if self._remote.bucket_dir is not None:
            self._copy_directory()
        else:
            self._copy_by_rclone()
        self._done = True
        return True

    def _copy_directory(self) -> None:
        source = Path(self._remote.target)
        if Path(os.path.realpath(self._at)).is_relative_to(os.path.realpath(source)):
            raise MountError(f"copying {source} to {self.path}: that is in the same bucket: choose another path")
        try:
            if source.is_file():
                target = Path(self._at, source.name) if self._into_folder else Path(self._at)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
            else:
                shutil.copytree(source, self._at, dirs_exist_ok=True)
        except (OSError, shutil.Error) as error:
            raise MountError(f"copying {source} to {self.path}: {error}") from error

    def _copy_by_rclone(self) -> None:
        where = f"copying {self._remote.target} to {self.path}"
        if self._rclone is None:
            raise MountError(f"{where}: there is no rclone on this node: install rclone 1.68 or newer")
        verb = "copy" if self._into_folder else "copyto"  # copyto gives a single object the path's name
        os.makedirs(os.path.dirname(self._at), exist_ok=True)
        command = [str(self._rclone), verb, self._remote.url, self._at, "--transfers", "8", "--log-level", "ERROR"]
        command += ["--contimeout", "10s", "--timeout", "60s", "--retries", "1", "--low-level-retries", "5"]
        try:
            done = subprocess.run(
                command, env=self._remote.environ(), cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False
            )
        except OSError as error:
            raise MountError(f"{where}: starting rclone: {error}") from error
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise store_error(where, f"rclone says: {(lines or ['nothing'])[-1]}")
        if not os.path.exists(self._at):  # rclone treats a prefix without objects as an empty directory
            if self._remote.target != self._remote.bucket:
                raise MountError(f"{where}: there is no such object and nothing under it: correct the source")
            os.mkdir(self._at)

    def is_lost(self) -> bool:
        return not self._done

    def is_dead(self) -> bool:
        return False

    def pending_uploads(self) -> int:
        return 0

    def as_bucket_mount(self) -> None:
        return None

    def unmount(self) -> None:
        """Nothing to do: a copy belongs to the user."""
