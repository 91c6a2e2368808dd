"""A bucket as an ordinary folder, for nodes without FUSE such as unprivileged pods: `MOUNT_CACHED` without a mount.

The bucket's content is copied into the folder first. From then on, files that are written there are uploaded once they
are closed, and files that are removed there are removed from the bucket, as a write-back mount does it. Files that stay
open, and those with the name of a temporary one, are uploaded now and then.

Each file that the bucket has gets a record in the form of rclone's cache (`cache_record`), so the watcher of uploads
and the checkpoint library know what is durable. A file without a record, or with another size or time, is not uploaded.

The folder is this node's own: what other nodes write to the bucket later does not appear in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.agent import clock
from perdure.agent.storage.durability_watcher import BucketMount
from perdure.agent.storage.flush import PERMANENT_ERROR, FlushError, clean_error
from perdure.agent.storage.periodic_flush import DEFAULT_EVERY_S, interval_s, is_temporary
from perdure.agent.storage.rclone import Remote
from perdure.agent.storage.rclone_mount import MountError, prepare_mountpoint, real_path, store_error
from perdure.agent.storage.snapshot import Stamp, open_files
from perdure.agent.storage.vfs_cache import PendingFile, VfsCache, record_of

SCAN_S = 0.25
MAX_CPU_SHARE = 0.05  # of scans: a folder with many files is scanned less often
MAX_RETRY_S = 30.0
STOP_TIMEOUT_S = 2.0
MANIFESTS = ".perdure"  # the folder of a save's manifests, which must not be in the bucket before its files
_COMMON = (
    "--use-json-log",
    "--log-level",
    "ERROR",
    "--contimeout",
    "10s",
    "--timeout",
    "60s",
    "--low-level-retries",
    "5",
)


class _UploadFailed(Exception):
    """rclone has ended with an error. `objects`: the files that its messages name; None: it may be about all."""

    def __init__(self, message: str, objects: frozenset[str] | None = None) -> None:
        super().__init__(message)
        self.objects = objects

    @classmethod
    def from_log(cls, output: bytes) -> _UploadFailed:
        """From the output of rclone with `--use-json-log`."""
        entries: list[dict[str, Any]] = []
        for line in output.splitlines():
            with contextlib.suppress(ValueError):
                entries.append(json.loads(line))
        causes = [one for one in entries if not str(one.get("msg", "")).startswith("Attempt ")]
        objects = [one.get("object") for one in causes]
        message = str((causes or entries or [{"msg": "it was ended"}])[0].get("msg", ""))
        named = frozenset(str(name) for name in objects) if objects and all(objects) else None
        return cls(message, named)

    def concerns(self, name: str) -> bool:
        """Whether the file may be one that failed. rclone may write to `NAME.1a2b3c4d.partial` first."""
        return self.objects is None or any(
            one == name or (one.startswith(f"{name}.") and one.endswith(".partial")) for one in self.objects
        )


class SyncedFolder:
    """A bucket at a path. `home`: a directory of this folder alone. Both outlive the agent."""

    state = "synced"
    mode = "MOUNT_CACHED"

    def __init__(
        self, spec: Mapping[str, Any], *, home: Path, binary: Path, reason: str, log: Callable[[str], None]
    ) -> None:
        """`reason`: why the bucket is not mounted."""
        self._remote = Remote.from_spec(spec, name="perdure" + hashlib.sha256(os.fsencode(home)).hexdigest()[:12])
        self.path, self.bucket = str(spec["path"]), self._remote.bucket
        self._at = real_path(self.path)
        self._home, self._binary, self._reason, self._log = home, binary, reason, log
        self._every_s = interval_s(spec.get("options") or {}) or DEFAULT_EVERY_S
        self.cache = VfsCache(home / "cache", self._remote.target)
        self._records = home / "cache" / "vfsMeta" / self._remote.name / self._remote.target.strip("/")
        self._marker = home / "synced"  # "copying", then "ready"
        self._uploaded: dict[str, Stamp] = {}
        self._dirty: dict[str, float] = {}  # file → since when it is known to differ from the bucket's, monotonic
        self._lock = threading.Lock()  # of a pass over the folder
        self._rclone: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_mounted = False
        self._is_read_only = bool((spec.get("options") or {}).get("read_only") or spec.get("read_only"))
        self._last_error = ""

    @property
    def source(self) -> str:
        """The bucket as the kernel's table of mounts would name it: it says where the records are."""
        return f"{self._remote.name}:{self._remote.target}"

    def mount(self) -> bool:
        """Copy the bucket's content, unless an earlier agent has, and start to upload. Raises MountError."""
        with self._lock:  # no pass may take what is not here yet for removed
            was_ready = self._adopt()
            if not was_ready:
                self._fill()
            self._stopped.clear()
            if self._thread is None and not self._is_read_only:
                self._thread = threading.Thread(target=self._run, name="synced-folder", daemon=True)
                self._thread.start()
            self._is_mounted = True
        return not was_ready

    def _adopt(self) -> bool:
        """Continue with the folder of an earlier agent; False if there is none, or it has lost its content.

        What vanished while no agent ran stays in the bucket: it may be a loss, and need not be the workload's doing.
        """
        if self._phase() != "ready" or not os.path.isdir(self._at):
            return False
        found, recorded = dict(_files_in(self._at)), dict(self._read_records())
        if recorded and not found:
            return False
        self._uploaded = {name: stamp for name, stamp in recorded.items() if name in found}
        return True

    def _fill(self) -> None:
        if self._phase() != "copying":  # by an agent that was killed
            prepare_mountpoint(self._at, shown=self.path)
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._marker.write_text("copying")
        os.makedirs(self._at, exist_ok=True)
        self._download()
        self._uploaded.clear()
        for name, stamp in _files_in(self._at):
            self._note_uploaded(name, stamp)
        self._link_content()
        self._marker.write_text("ready")
        self._log(f"{self.path} is a folder that is uploaded in the background, not a mount: {self._reason}")

    def _phase(self) -> str:
        return self._marker.read_text() if self._marker.exists() else ""

    def is_lost(self) -> bool:
        return not self._is_mounted or not os.path.isdir(self._at)

    def is_dead(self) -> bool:
        return False

    def pending_uploads(self) -> int:
        return len(self._dirty)

    def as_bucket_mount(self) -> BucketMount:
        named = os.path.abspath(os.path.expanduser(self.path))
        return BucketMount((named, self._at), self.cache, self.is_lost, is_folder=True)

    def flush(self, deadline: float | None) -> None:
        """Upload everything. `deadline`: time of `clock`, or None. Raises FlushError. Safe to repeat."""
        failures = 0
        while not self._is_read_only:
            error = self._pass_until(deadline)
            try:
                pending = self._pending()
            except OSError as unreadable:
                raise FlushError(f"{self.path}: {unreadable}", {}) from unreadable
            if not pending:
                return
            is_late = self._stopped.is_set() or (deadline is not None and clock.now() >= deadline)
            failures = failures + 1 if error else 0
            if is_late or (error and (PERMANENT_ERROR.search(error) or failures >= 5)):
                names = ", ".join(one.name for one in pending[:5])
                when = "not by the deadline; " if is_late else ""
                text = f"{self.path}: {len(pending)} files did not reach bucket {self.bucket}: {names}: {when}{error}"
                raise FlushError(text, {self.path: tuple(pending)})
            if error:
                time.sleep(min(0.2 * 2.0**failures, 5.0))

    def unmount(self) -> None:
        """Stop to upload. The folder is removed if the bucket has all of it; else it stays, with what belongs to it."""
        self._stopped.set()
        self._end_rclone()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)
            self._thread = None
        self._is_mounted = False
        if self._phase() != "ready" or not os.path.isdir(self._at):
            return
        if not self._uploaded:
            self._uploaded = dict(self._read_records())
        with contextlib.suppress(OSError):
            if self._is_read_only or not self._pending():
                shutil.rmtree(self._at, ignore_errors=True)
                shutil.rmtree(self._home, ignore_errors=True)

    # ---- passes over the folder ----

    def _run(self) -> None:
        retry_s = SCAN_S
        while not self._stopped.wait(retry_s):
            began = time.thread_time()
            error = ""
            with self._lock:
                if not self._stopped.is_set() and os.path.isdir(self._at):
                    error = self._sync(final=False)
            spent_s = time.thread_time() - began
            if error and error != self._last_error:
                self._log(f"uploading {self.path} to bucket {self.bucket}: {error}; trying again")
            self._last_error = error
            retry_s = min(max(1.0, 2 * retry_s), MAX_RETRY_S) if error else max(SCAN_S, spent_s / MAX_CPU_SHARE)

    def _pass_until(self, deadline: float | None) -> str:
        """One pass over all files, which is cut off at `deadline`. Returns its error, or ""."""
        timer: threading.Timer | None = None
        if deadline is not None:
            timer = threading.Timer(max(0.0, deadline - clock.now()), self._end_rclone)
            timer.daemon = True
            timer.start()
        try:
            if not self._lock.acquire(timeout=-1 if deadline is None else max(0.0, deadline - clock.now())):
                return "an upload was in progress"
            try:
                return self._sync(final=True)
            finally:
                self._lock.release()
        finally:
            if timer is not None:
                timer.cancel()

    def _sync(self, *, final: bool) -> str:
        """Upload and remove what has changed. `final`: also files that are in use. Returns the error, or ""."""
        if not os.path.isdir(self._at):
            return "the folder was removed"
        try:
            found = dict(_files_in(self._at))
        except OSError as error:
            return str(error)
        now = time.monotonic()
        changed = [name for name, stamp in found.items() if self._uploaded.get(name) != stamp]
        self._dirty = {name: self._dirty.get(name, now) for name in changed}
        removed = [name for name in self._uploaded if name not in found]
        due = changed if final else self._without_files_in_use(changed, now)
        try:
            files, manifests = _in_order(due)
            self._upload(files, found)
            self._upload(manifests, found)
            if removed and not self._stopped.is_set():
                self._remove(removed)
        except _UploadFailed as error:
            return clean_error(str(error))
        except OSError as error:
            return str(error)
        return ""

    def _without_files_in_use(self, changed: Sequence[str], now: float) -> list[str]:
        """Those that are closed and not temporary, and those that have waited for too long."""
        fresh = [name for name in changed if now - self._dirty[name] < self._every_s]
        opened = {path for path, _ in open_files({os.path.join(self._at, name) for name in fresh})} if fresh else set()
        waiting = {name for name in fresh if is_temporary(name) or os.path.join(self._at, name) in opened}
        return [name for name in changed if name not in waiting]

    def _pending(self) -> list[PendingFile]:
        found = _files_in(self._at) if os.path.isdir(self._at) else ()
        return [PendingFile(name, stamp.size) for name, stamp in found if self._uploaded.get(name) != stamp]

    # ---- the bucket ----

    def _download(self) -> None:
        where = f"copying bucket {self.bucket} to {self.path}"
        try:
            self._call("copy", self._remote.url, self._at, "--transfers", "8")
        except _UploadFailed as error:
            if "directory not found" not in str(error) or self._remote.url == self._remote.bucket_url:
                raise store_error(where, f"rclone says: {error}") from None
            try:  # a prefix without objects is no error, but a bucket that does not exist is one
                self._call("lsf", self._remote.bucket_url, "--max-depth", "1")
            except _UploadFailed as missing:
                raise store_error(where, f"rclone says: {missing}") from None
        except OSError as error:
            raise MountError(f"{where}: starting rclone: {error}") from error

    def _upload(self, names: Sequence[str], found: Mapping[str, Stamp]) -> None:
        """Upload these files, and record those that have not changed meanwhile. Raises _UploadFailed, OSError.

        A file that fails holds up no other.
        """
        if not names or self._stopped.is_set():
            return
        failed: _UploadFailed | None = None
        flags = ("--no-traverse", "--local-no-check-updated", "--order-by", "modtime,descending", "--transfers", "4")
        try:
            self._call("copy", self._at, self._remote.url, "--files-from-raw", self._list_of(names), *flags)
        except _UploadFailed as error:
            failed = error
        for name in names:
            if failed is not None and failed.concerns(name):
                continue
            with contextlib.suppress(OSError):
                if Stamp.of(os.path.join(self._at, name)) == found[name]:
                    self._note_uploaded(name, found[name])
        if failed is not None:
            raise failed

    def _remove(self, names: list[str]) -> None:
        """Remove these files from the bucket, manifests first: a checkpoint without files must not look complete."""
        for part in filter(None, reversed(_in_order(names))):
            self._call("delete", self._remote.url, "--files-from-raw", self._list_of(part))
            for name in part:
                self._uploaded.pop(name, None)
                with contextlib.suppress(OSError):
                    os.unlink(self._records / name)

    def _list_of(self, names: Sequence[str]) -> str:
        """The path of a file with these names."""
        path = self._home / "names"
        path.write_bytes(b"".join(os.fsencode(name) + b"\n" for name in names))
        return str(path)

    def _call(self, *words: str) -> None:
        """Run rclone to its end. Raises _UploadFailed, OSError."""
        self._rclone = subprocess.Popen(
            [str(self._binary), *words, "--retries", "1", *_COMMON],
            env=self._remote.environ(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # signals to the workload's group do not reach it
        )
        _, output = self._rclone.communicate()
        if self._rclone.returncode != 0:
            raise _UploadFailed.from_log(output)

    def _end_rclone(self) -> None:
        rclone = self._rclone
        if rclone is not None and rclone.poll() is None:
            rclone.kill()

    # ---- records ----

    def _note_uploaded(self, name: str, stamp: Stamp) -> None:
        """Record that the bucket has this content of the file. A record is complete at every moment."""
        record = self._records / name
        record.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._home / "record"
        fingerprint = f"{stamp.size},{stamp.mtime_ns}"
        temporary.write_text(json.dumps(record_of(stamp.size, stamp.mtime_ns, fingerprint)))
        os.replace(temporary, record)
        self._uploaded[name] = stamp
        self._dirty.pop(name, None)

    def _read_records(self) -> Iterator[tuple[str, Stamp]]:
        for name, _ in _files_in(str(self._records)):
            record = self.cache.find_record(name)
            if record is not None and record.is_uploaded and record.size is not None and record.mtime_ns is not None:
                yield name, Stamp(record.size, record.mtime_ns)

    def _link_content(self) -> None:
        """Let the cache show the folder's files as the content of its records."""
        content = self._home / "cache" / "vfs" / self._remote.name / self._remote.target.strip("/")
        content.parent.mkdir(parents=True, exist_ok=True)
        self._records.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(content):
            content.symlink_to(self._at)


def _files_in(folder: str) -> Iterator[tuple[str, Stamp]]:
    """(name relative to the folder, content) of every regular file. One that vanishes meanwhile is left out.

    Raises OSError for a folder that cannot be read: its files must not look removed.
    """

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for directory, _, names in os.walk(folder, onerror=fail):
        for name in names:
            path = os.path.join(directory, name)
            with contextlib.suppress(FileNotFoundError):
                if os.path.isfile(path) and not os.path.islink(path):
                    yield os.path.relpath(path, folder), Stamp.of(path)


def _in_order(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """(files, manifests): the first are uploaded first, and removed last."""
    manifests = {name for name in names if os.path.basename(os.path.dirname(name)) == MANIFESTS}
    return [name for name in names if name not in manifests], sorted(manifests)
