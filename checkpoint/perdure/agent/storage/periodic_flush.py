"""Uploads the files of a cached mount that rclone does not upload by itself while they are in use.

rclone uploads a file some time after its last close, and a write cancels the upload. So a log, an event file or a
counter that stays open, or that is written again sooner than that, would reach the bucket only when the node ends.
`PeriodicFlush` looks at rclone's records every few seconds. A file that has had unsaved writes for long enough is
copied (`snapshot`), and rclone uploads the copy under the file's name. The file stays dirty: nothing here makes a
checkpoint durable.

Three kinds of files are left out. A file that waits in rclone's queue and is not written any more is only brought
forward there. A file with a name of a temporary one (`.tmp-x`, `model.pt.part`) is about to be renamed: half of it must
not be renamed in the bucket. And rclone stores some names in another form than the mount shows (`has_record_name`).

rclone learns of an uploaded copy from a listing (`vfs/refresh`); from then on it renames and removes it with the file.
What happens to the file during the upload is repaired afterwards (`_reconcile`): the copy of a file that was removed
goes, and a copy that has replaced a newer upload of rclone's is replaced in turn.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from perdure.agent.storage import snapshot
from perdure.agent.storage.flush import SMALL_BYTES, clean_error
from perdure.agent.storage.snapshot import Stamp
from perdure.agent.storage.vfs_cache import PendingFile, VfsCache, has_holes
from perdure.checkpoint.durability.cache_record import has_record_name, parse_time
from perdure.checkpoint.durability.rclone_rc import Rc, RcError

DEFAULT_EVERY_S = 30.0
MIN_EVERY_S = 1.0
_MAX_CPU_SHARE = 0.05
_MIN_LOOK_S, _MAX_LOOK_S = 0.1, 2.0  # between two looks at the records
_COPY_AFTER = 0.6  # of the interval: the rest is for the upload
_SETTLED_AFTER = 1 / 6  # of the interval: a file that was not written for this long is left to rclone
_UPLOADS = 4  # at the same time
_JOB_POLL_S = 0.1
_RC_TIMEOUT_S = 10.0
_TEMPORARY = re.compile(
    r"^\.?te?mp[._-]|[._-]tmp([._-]\w*)?$|\.(te?mp|part|partial|incomplete|crdownload)$", re.IGNORECASE
)
_DURATION = re.compile(r"(\d+\.?\d*|\.\d+)(ms|us|µs|ns|[smhdwMy])")
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNITS_S.update({"w": 7 * 86400.0, "M": 30 * 86400.0, "y": 365 * 86400.0})


def interval_s(options: Mapping[str, Any]) -> float | None:
    """Seconds between two flushes of a file, by the options of a mount; None if `flush_every` is off.

    By default 30 s, and never less than twice `vfs_write_back`, which would say the opposite.
    """
    write_back_s = _seconds(options.get("vfs_write_back")) or 0.0
    chosen = options.get("flush_every")
    return max(DEFAULT_EVERY_S, 2 * write_back_s) if chosen is None else _seconds(chosen)


def _seconds(duration: object) -> float | None:
    """A duration as rclone writes it: `1h30m`, `100ms`, `2d`, a number of seconds. None for `off`, and for none."""
    text = str(duration)
    if duration is None or text == "off":
        return None
    parts = _DURATION.findall(text)
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts) if parts else float(text)


def is_temporary(name: str) -> bool:
    """Whether a file with this name is about to get another one, or lies in a folder that is."""
    return any(_TEMPORARY.search(part) for part in name.split("/"))


class Copied(Protocol):
    """What is needed of a cached mount."""

    path: str

    @property
    def rc(self) -> Rc: ...


@dataclass
class _File:
    """A dirty file. Times are monotonic."""

    unsaved_since: float
    not_before: float = 0.0  # when the next copy may begin
    copied: Stamp | None = None  # what the bucket has of it


class PeriodicFlush:
    """Brings every dirty file of one mount into its bucket at least every `every_s`, except as above.

    `url`: the mounted remote as rclone names it. `cache`: the mount's, not shared with another thread. `copies`: a
    directory of its own, on the disk of the cache.
    """

    def __init__(
        self,
        mount: Copied,
        url: str,
        cache: VfsCache,
        copies: Path,
        *,
        every_s: float,
        log: Callable[[str], None],
    ) -> None:
        self._mount, self._url, self._cache, self._copies = mount, url, cache, copies
        self._every_s = max(MIN_EVERY_S, every_s)
        self._log = log
        self._files: dict[str, _File] = {}
        self._last_problem = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="periodic-flush", daemon=True)

    def start(self) -> None:
        """Flush until `stop`."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End it, also in the middle of an upload. Returns after `timeout_s`, whether it has ended or not."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        look_s = min(_MAX_LOOK_S, max(_MIN_LOOK_S, self._every_s / 15))
        pause_s = look_s
        shutil.rmtree(self._copies, ignore_errors=True)  # of an agent that was killed
        while not self._stopped.wait(pause_s):
            began = time.thread_time()
            self._look_and_report()
            pause_s = max(look_s, (time.thread_time() - began) / _MAX_CPU_SHARE)
        self._reconcile_all(dirty={})

    def _look_and_report(self) -> None:
        try:
            self.flush_due(time.monotonic())
        except (OSError, RcError) as error:
            self._report(str(error))

    def flush_due(self, now: float) -> None:
        """Copy and upload the files that are due at `now` (monotonic seconds). Raises OSError and RcError."""
        dirty = {file.name: file for file in self._cache.dirty_files()}
        self._reconcile_all(dirty)
        due = [file for file in dirty.values() if self._is_due(file, now)]
        if not due:
            return
        queue = {str(item["name"]): item for item in self._mount.rc.call("vfs/queue").get("queue") or []}
        starving = [file for file in due if not self._is_rclones_turn(file, queue.get(file.name), now)]
        if starving:
            self._copies.mkdir(parents=True, exist_ok=True)
            with ThreadPoolExecutor(min(_UPLOADS, len(starving)), "periodic-flush") as uploads:
                list(uploads.map(self._flush_or_report, starving))

    def _is_due(self, file: PendingFile, now: float) -> bool:
        tracked = self._files.setdefault(file.name, _File(now))
        if tracked.copied is not None and self._stamp(file.name) == tracked.copied:
            tracked.unsaved_since = now
            return False
        is_old = now - tracked.unsaved_since >= self._every_s * _COPY_AFTER
        if not is_old or now < tracked.not_before or not has_record_name(file.name):
            return False
        return not is_temporary(file.name)

    def _is_rclones_turn(self, file: PendingFile, item: Mapping[str, Any] | None, now: float) -> bool:
        """Whether rclone is about to upload the file. If it only waits for its delay to pass, it is brought forward."""
        if item is None or self._was_written_within(file.name, self._every_s * _SETTLED_AFTER):
            return False
        if item["uploading"]:
            return True
        if float(item.get("expiry", 0.0)) <= 0:
            return file.size > SMALL_BYTES  # all transfers are busy, maybe with huge files
        self._files[file.name].not_before = now + self._every_s * _COPY_AFTER
        self._mount.rc.call("vfs/queue-set-expiry", id=item["id"], expiry=-1e9)
        return True

    def _flush_or_report(self, file: PendingFile) -> None:
        began = time.monotonic()
        try:
            self._flush_file(file.name, began)
        except (OSError, RcError) as error:
            self._report(f"{file.name}: {error}")
            took_s = time.monotonic() - began
            self._files[file.name].not_before = time.monotonic() + max(took_s, self._every_s * _COPY_AFTER)

    def _flush_file(self, name: str, began: float) -> None:
        tracked = self._files[name]
        stamp = self._upload_copy(name)
        if stamp is None:
            tracked.not_before = began + self._every_s * _COPY_AFTER
            return
        if tracked.copied is None:
            self._mount.rc.call("vfs/refresh", timeout_s=_RC_TIMEOUT_S, dir=os.path.dirname(name))
        now = time.monotonic()
        tracked.copied, tracked.unsaved_since = stamp, began
        tracked.not_before = now + (now - began)  # at most half of the time is spent on one file

    def _upload_copy(self, name: str) -> Stamp | None:
        """Upload a consistent copy; returns what was uploaded, None if there is nothing to upload."""
        data = self._cache.data_path(name)
        if data is None:
            return None
        shown = os.path.join(os.path.realpath(self._mount.path), name)
        copy = self._copies / f"{threading.get_ident()}"
        try:
            # Where the cache has holes, only the mount has the content: parts of the object that were not read yet.
            source = shown if has_holes(data) else data
            stamp = snapshot.take(source, shown, str(copy), self._stopped.wait)
            if stamp is not None:
                self._upload(copy, name)
            return stamp
        except FileNotFoundError:
            return None  # it was removed meanwhile
        finally:
            with suppress(OSError):
                copy.unlink()

    def _upload(self, copy: Path, name: str) -> None:
        """Raises RcError, also if it was stopped."""
        rc = self._mount.rc
        arguments = {"srcFs": str(copy.parent), "srcRemote": copy.name, "dstFs": self._url, "dstRemote": name}
        job = rc.call("operations/copyfile", timeout_s=_RC_TIMEOUT_S, _async=True, **arguments)["jobid"]
        while True:
            status = rc.call("job/status", timeout_s=_RC_TIMEOUT_S, jobid=job)
            if status["finished"]:
                break
            if self._stopped.wait(_JOB_POLL_S):
                rc.call("job/stop", jobid=job)
                raise RcError("the node ends")
        if not status["success"]:
            raise RcError(clean_error(str(status["error"])))

    def _reconcile_all(self, dirty: Mapping[str, PendingFile]) -> None:
        """Forget the files that are not dirty any more, once the bucket has what it should have of them."""
        for name in [name for name in self._files if name not in dirty]:
            try:
                copied = self._files[name].copied
                if copied is None or self._reconcile(name, copied):
                    del self._files[name]
            except (OSError, RcError) as error:
                self._report(f"{name}: {error}")

    def _reconcile(self, name: str, copied: Stamp) -> bool:
        """Whether the bucket has what it should have of a file that was copied and is not dirty any more."""
        record = self._cache.find_record(name)
        if record is not None and not record.is_uploaded:
            return True  # it was written again: rclone uploads it
        item = self._mount.rc.call("operations/stat", timeout_s=_RC_TIMEOUT_S, fs=self._url, remote=name).get("item")
        is_copy = item is not None and _is_of(item, copied)
        if record is None:
            shown = os.path.join(os.path.realpath(self._mount.path), name)
            if is_copy and not os.path.lexists(shown):  # otherwise it was only evicted from the cache
                self._mount.rc.call("operations/deletefile", timeout_s=_RC_TIMEOUT_S, fs=self._url, remote=name)
            return True
        if not is_copy or self._stamp(name) in (copied, None):
            return True
        self._files[name].copied = self._upload_copy(name)  # the copy has replaced what rclone had uploaded
        return self._files[name].copied is None

    def _stamp(self, name: str) -> Stamp | None:
        data = self._cache.data_path(name)
        with suppress(OSError):
            return Stamp.of(data) if data is not None else None
        return None

    def _was_written_within(self, name: str, seconds: float) -> bool:
        stamp = self._stamp(name)
        return stamp is not None and time.time() - stamp.mtime_ns / 1e9 < seconds

    def _report(self, problem: str) -> None:
        if problem != self._last_problem and not self._stopped.is_set():
            self._last_problem = problem
            self._log(f"{self._mount.path}: a file that stays in use cannot be uploaded now: {problem}")


def _is_of(item: Mapping[str, Any], stamp: Stamp) -> bool:
    """Whether an object, as rclone lists it, has this size and time. Stores keep times to the millisecond at least."""
    mtime_ns = parse_time(item.get("ModTime"))
    return item.get("Size") == stamp.size and mtime_ns is not None and abs(mtime_ns - stamp.mtime_ns) < 1_000_000
