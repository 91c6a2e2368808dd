"""A bucket as an ordinary folder, for nodes without FUSE such as unprivileged pods: `MOUNT_CACHED` without a mount.

The bucket's content is copied into the folder first. From then on, files that are written there are uploaded once they
are closed, and files that are removed there are removed from the bucket, as a write-back mount does it. Files that stay
open, and those with the name of a temporary one, are uploaded now and then.

Each file that the bucket has gets a record in the form of rclone's cache (`cache_record`), so the watcher of uploads
and the checkpoint library know what is durable. A file without a record, or with another size or time, is not uploaded.

Nothing is taken for removed or uploaded that merely may be. A walk over the folder misses what is renamed meanwhile, so
an object is removed once two walks have missed its file, no file that waits may be the same under another name, and the
file is certainly not there. A file counts as uploaded once the bucket lists it. Only a manifest that an earlier walk
has found already is uploaded, after its files.

The folder is this node's own: what other nodes write to the bucket later appears in it at a `refresh` only.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.agent import clock
from perdure.agent.storage.durability_watcher import BucketMount
from perdure.agent.storage.flush import PERMANENT_ERROR, FlushError, clean_error
from perdure.agent.storage.periodic_flush import DEFAULT_EVERY_S, interval_s, is_temporary
from perdure.agent.storage.rclone import Remote
from perdure.agent.storage.rclone_mount import MountError, prepare_mountpoint, real_path
from perdure.agent.storage.snapshot import Stamp, open_files
from perdure.agent.storage.synced.bucket_download import download, download_changes
from perdure.agent.storage.synced.folder_marker import MARK_FILE, FolderMarker, Phase
from perdure.agent.storage.synced.folder_tree import FolderTree, is_directory, is_removed, read_tree, shown_name
from perdure.agent.storage.synced.manifest_order import in_order, is_manifest, is_waiting
from perdure.agent.storage.synced.rclone_calls import CallFailed, RcloneCalls, can_be_named
from perdure.agent.storage.synced.retry_delay import MAX_DELAY_S, RetryDelay
from perdure.agent.storage.synced.upload_records import UploadRecords
from perdure.agent.storage.vfs_cache import PendingFile

SCAN_S = 0.25
MAX_CPU_SHARE = 0.05  # of scans: a folder with many files is scanned less often
STOP_TIMEOUT_S = 2.0
_UNKNOWN = Stamp(-1, -1)  # what the bucket has of a file whose upload was begun
_NAME_PROBLEM = "a bucket cannot have its name: it has a control character or one of rclone's quotes: rename it"


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
        self._home, self._reason, self._log = home, reason, log
        self._every_s = interval_s(spec.get("options") or {}) or DEFAULT_EVERY_S
        self._marker = FolderMarker(home / "synced")
        self._records = UploadRecords(home, self._remote)
        self._rclone = RcloneCalls(binary, self._remote, names_file=home / "names")
        self.cache = self._records.cache
        self._uploaded: dict[str, Stamp] = {}
        self._dirty: dict[str, float] = {}  # file → since when it is known to differ from the bucket's, monotonic
        self._previous: FolderTree | None = None  # of the walk before
        self._failures: dict[str, RetryDelay] = {}  # of files that rclone could not upload
        self._is_store_failing = False  # at the last pass, and not for some files alone
        self._logged: set[str] = set()
        self._lock = threading.Lock()  # of a pass over the folder
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
        try:
            with self._lock:  # no pass may take what is not here yet for removed
                return self._mount()
        except OSError as error:
            raise MountError(f"mounting at {self.path}: {error}") from error

    def _mount(self) -> bool:
        if not self._rclone.end_leftovers():
            raise MountError(f"mounting at {self.path}: an rclone of an earlier agent does not end", is_transient=True)
        self._stopped.clear()
        self._rclone.allow()
        self._previous = None
        was_ready = self._marker.is_claimed(self._at) and self._continue()
        if not was_ready:
            self._fill()
        if self._thread is None and not self._is_read_only:
            self._thread = threading.Thread(target=self._run, name="synced-folder", daemon=True)
            self._thread.start()
        self._is_mounted = True
        return not was_ready

    def _continue(self) -> bool:
        """Continue with the folder of an earlier agent; False if all that it held is gone. Raises OSError.

        What vanished while no agent ran stays in the bucket: it may be a loss, and need not be the workload's doing.
        """
        stamps, recorded = read_tree(self._at, without=MARK_FILE).files, dict(self._records.uploaded_files())
        self._uploaded = {name: stamp for name, stamp in recorded.items() if name in stamps}
        return bool(stamps) or not recorded

    def _fill(self) -> None:
        """Raises MountError, OSError."""
        if self._marker.phase() is not Phase.COPYING:  # by an agent that was killed
            prepare_mountpoint(self._at, shown=self.path)
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._marker.set_copying()
        os.makedirs(self._at, exist_ok=True)
        sizes = download(self._rclone, self._remote, self._at, shown=self.path)
        self._uploaded.clear()
        self._records.clear(self._at)
        for name, stamp in read_tree(self._at, without=MARK_FILE).files.items():
            if sizes.get(name) == stamp.size or not can_be_named(name):  # the latter has another name in the bucket
                self._note_uploaded(name, stamp)
        self._marker.claim(self._at)
        self._log(f"{self.path} is a folder that is uploaded in the background, not a mount: {self._reason}")

    def refresh(self) -> None:
        """Copy what other nodes have written since `mount`, as the attempt before may have. Raises MountError."""
        with self._lock:
            changes = download_changes(self._rclone, self._remote, self._at, self._uploaded, shown=self.path)
            for name, stamp in changes.items():
                self._note_uploaded(name, stamp)

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
        failures, pending = 0, dict[PendingFile, str]()
        while not self._is_read_only:
            error, before = self._pass_until(deadline), pending
            pending = {}
            try:
                pending = self._pending()
                if not pending:
                    return
            except OSError as failed:
                error = error or str(failed)
            is_late = self._stopped.is_set() or (deadline is not None and clock.now() >= deadline)
            failures = failures + 1 if error or pending == before else 0
            is_hopeless = not error and all(why or is_manifest(one.name) for one, why in pending.items())
            if is_late or is_hopeless or PERMANENT_ERROR.search(error) or failures >= 5:
                raise self._flush_error(pending, error, is_late=is_late)
            if failures:
                time.sleep(min(0.2 * 2.0**failures, 5.0))

    def _flush_error(self, pending: Mapping[PendingFile, str], error: str, *, is_late: bool) -> FlushError:
        names = ", ".join(shown_name(one.name) + (f" ({why})" if why else "") for one, why in list(pending.items())[:5])
        what = f"{len(pending)} files did not reach bucket {self.bucket}: {names}" if pending else ""
        why = "; ".join(filter(None, ("not by the deadline" if is_late else "", error)))
        return FlushError(": ".join(filter(None, (self.path, what, why))), {self.path: tuple(pending)})

    def unmount(self) -> None:
        """Stop to upload. The folder is removed if the bucket has all of it; else it stays, with what belongs to it."""
        self._stopped.set()
        self._rclone.end()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)
            self._thread = None
        self._is_mounted = False
        if not self._rclone.end_leftovers() or not self._marker.is_claimed(self._at):
            return
        self._uploaded = self._uploaded or dict(self._records.uploaded_files())
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
                    self._rclone.allow()
                    try:
                        error = self._sync(final=False)
                    except Exception as failed:  # noqa: BLE001 - the uploads must go on
                        error = f"unexpectedly, {type(failed).__name__}: {failed}"
                        self._is_store_failing = True
            spent_s = time.thread_time() - began
            if error and error != self._last_error and not self._stopped.is_set():
                self._log(f"uploading {self.path} to bucket {self.bucket}: {error}; trying again")
            if error or not self._failures:  # between two tries of a file that fails, a pass has no error
                self._last_error = error
            scan_s = max(SCAN_S, spent_s / MAX_CPU_SHARE)
            retry_s = max(scan_s, min(max(1.0, 2 * retry_s), MAX_DELAY_S)) if self._is_store_failing else scan_s

    def _pass_until(self, deadline: float | None) -> str:
        """One pass over all files, which is cut off at `deadline`. Returns its error, or ""."""
        if not self._lock.acquire(timeout=-1 if deadline is None else max(0.0, deadline - clock.now())):
            self._rclone.end()
            return "an upload was in progress"
        timer: threading.Timer | None = None
        try:
            if not self._stopped.is_set():
                self._rclone.allow()
            if deadline is not None:
                timer = threading.Timer(max(0.0, deadline - clock.now()), self._rclone.end)
                timer.daemon = True
                timer.start()
            return self._sync(final=True)
        finally:
            if timer is not None:
                timer.cancel()
            self._lock.release()

    def _sync(self, *, final: bool) -> str:
        """Upload and remove what has changed. `final`: also files that are in use. Returns the error, or ""."""
        errors: list[str] = []
        self._is_store_failing = False
        try:
            if not is_directory(self._at):
                return "the folder was removed"
            previous = self._walk() if final else self._previous
            self._previous = tree = self._walk()
            self._upload_changes(previous or FolderTree(), tree, errors, final=final)
            if previous is not None:
                self._remove(self._removed(previous, tree))
        except (CallFailed, OSError) as error:
            errors.append(clean_error(str(error)))
            self._is_store_failing = True
        return "; ".join(dict.fromkeys(errors))

    def _walk(self) -> FolderTree:
        """Raises OSError, also if the folder was replaced meanwhile."""
        if not self._marker.is_claimed(self._at):
            self._adopt_other_folder()
        tree = read_tree(self._at, without=MARK_FILE)
        if not self._marker.is_claimed(self._at):
            raise OSError(f"{self.path} was replaced meanwhile")
        for name, why in (*tree.problems.items(), *tree.ignored.items()):
            self._log_once(name, why)
        return tree

    def _adopt_other_folder(self) -> None:
        """Another folder is in place of this one, by the user or as a disk was unmounted: remove no object.

        Raises OSError.
        """
        os.stat(self._at)
        self._previous = None
        self._uploaded.clear()
        self._records.clear(self._at)
        self._marker.claim(self._at)
        self._log(f"{self.path} was replaced by another folder: what it held stays in bucket {self.bucket}")

    def _upload_changes(self, previous: FolderTree, tree: FolderTree, errors: list[str], *, final: bool) -> None:
        """Raises OSError. Failures of rclone are appended to `errors`: a file that fails holds up no other."""
        now = time.monotonic()
        changed = [name for name, stamp in tree.files.items() if self._uploaded.get(name) != stamp]
        self._dirty = {name: self._dirty.get(name, now) for name in changed}
        self._failures = {name: one for name, one in self._failures.items() if name in self._dirty}
        nameable = [name for name in changed if can_be_named(name)]
        for name in set(changed).difference(nameable):
            self._log_once(name, _NAME_PROBLEM)
        due = nameable if final else self._without_files_in_use(nameable, tree, now)
        if not final:
            due = [name for name in due if name not in self._failures or self._failures[name].is_due()]
        files, manifests = in_order(due)
        self._upload(files, tree.files, errors)
        pending = {*tree.problems, *(name for name in changed if self._uploaded.get(name) != tree.files[name])}
        settled = [name for name in manifests if previous.files.get(name) == tree.files[name]]
        self._upload([name for name in settled if not is_waiting(self._at, name, pending)], tree.files, errors)

    def _without_files_in_use(self, changed: Sequence[str], tree: FolderTree, now: float) -> list[str]:
        """Those that are closed and not temporary, and those that have waited for too long."""
        paths = {name: os.path.join(self._at, name) for name in changed if now - self._dirty[name] < self._every_s}
        paths.update({name: os.path.realpath(path) for name, path in paths.items() if name in tree.links})
        opened = {path for path, _ in open_files(set(paths.values()))} if paths else set()
        waiting = {name for name, path in paths.items() if is_temporary(name) or path in opened}
        return [name for name in changed if name not in waiting]

    def _pending(self) -> dict[PendingFile, str]:
        """The files that the bucket does not have, each with the reason if waiting cannot help. Raises OSError."""
        if not is_directory(self._at):
            return {PendingFile(name, 0): "the folder was removed before its upload" for name in self._dirty}
        tree = read_tree(self._at, without=MARK_FILE)
        changed = {name: stamp for name, stamp in tree.files.items() if self._uploaded.get(name) != stamp}
        pending = {
            PendingFile(name, stamp.size): "" if can_be_named(name) else _NAME_PROBLEM
            for name, stamp in changed.items()
        }
        return {**pending, **{PendingFile(name, 0): why for name, why in tree.problems.items()}}

    def _log_once(self, name: str, why: str) -> None:
        line = f"{self.path}: {name!r:.300} is not uploaded to bucket {self.bucket}: {why}"
        if line not in self._logged:
            self._logged.add(line)
            self._log(line)

    # ---- the bucket ----

    def _upload(self, names: Sequence[str], stamps: Mapping[str, Stamp], errors: list[str]) -> None:
        """Upload these files, and record those that the bucket has and that have not changed meanwhile.

        Only a copy without an error and a listing together prove an upload: after an error, the rest is copied again,
        which takes the time of a look at each object.
        """
        for name in names:  # an object whose file is removed before its upload is recorded must be removed, too
            self._uploaded.setdefault(name, _UNKNOWN)
        rest = list(names)
        while rest and not self._stopped.is_set():
            try:
                self._rclone.upload(self._at, rest)
                sizes = self._rclone.sizes(rest)
            except CallFailed as error:
                errors.append(clean_error(str(error)))
                failed = [] if error.objects is None else [name for name in rest if error.concerns(name)]
                self._failures.update({name: RetryDelay.after(self._failures.get(name)) for name in failed})
                rest = [name for name in rest if name not in set(failed)] if failed else []
                self._is_store_failing = self._is_store_failing or not failed
            else:
                for name in filter(lambda one: self._is_still(one, stamps[one]), rest):
                    self._note_arrived(name, stamps[name], sizes.get(name), errors)
                return

    def _note_arrived(self, name: str, stamp: Stamp, size: int | None, errors: list[str]) -> None:
        try:
            if size != stamp.size:
                raise OSError(
                    f"after its upload, the bucket has {'no such object' if size is None else f'{size} bytes'}"
                )
            self._note_uploaded(name, stamp)
        except OSError as error:
            errors.append(f"{name}: {error}")
            self._failures[name] = RetryDelay.after(self._failures.get(name))

    def _is_still(self, name: str, stamp: Stamp) -> bool:
        try:
            return Stamp.of(os.path.join(self._at, name)) == stamp
        except OSError:
            return False

    def _removed(self, previous: FolderTree, tree: FolderTree) -> list[str]:
        """The files that two walks have missed, without those that may wait to be uploaded under another name."""
        walks = (previous, tree)
        missed = [name for name in self._uploaded if not any(name in one.files or one.hides(name) for one in walks)]
        pending = (
            {stamp for name, stamp in tree.files.items() if self._uploaded.get(name) != stamp} if missed else set()
        )
        return [name for name in missed if self._uploaded[name] not in pending]

    def _remove(self, names: Sequence[str]) -> None:
        """Remove these files from the bucket, manifests first: a checkpoint without files must not look complete.

        Raises CallFailed, OSError.
        """
        for name in names:
            if not can_be_named(name):
                self._log_once(name, "it was removed here, but " + _NAME_PROBLEM)
        for part in reversed(in_order([name for name in names if can_be_named(name)])):
            if self._stopped.is_set() or not self._marker.is_claimed(self._at):
                return
            gone = [name for name in part if is_removed(self._at, name)]
            if gone:
                self._rclone.delete(gone)
            for name in gone:
                self._uploaded.pop(name, None)
                self._records.forget(name)

    def _note_uploaded(self, name: str, stamp: Stamp) -> None:
        """Raises OSError."""
        self._records.note(name, stamp)
        self._uploaded[name] = stamp
        self._dirty.pop(name, None)
        self._failures.pop(name, None)
