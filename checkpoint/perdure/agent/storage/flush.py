"""Uploads all cached writes of a node and waits until they are in their buckets.

A mount is clean when rclone's upload queue is empty, then no record of its cache (`vfs_cache`) is dirty, then the queue
is still empty. The queue alone is not enough: right after close() it is still empty (the kernel sends RELEASE
asynchronously), and it never lists an open file. The records alone are not enough either: a rename between two
directories can hide a file from one walk of the tree.

Order: small files first (manifests, logs), then large ones, the newest first within both, because a machine that is
about to be taken should at least complete its newest checkpoint. Readers verify sizes, so they reject a manifest that
arrives before its data.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from perdure.agent import clock
from perdure.agent.storage.snapshot import open_files
from perdure.agent.storage.vfs_cache import PendingFile, VfsCache
from perdure.checkpoint.durability.rclone_rc import Rc, RcError

SMALL_BYTES = 1 << 20
STALL_TIMEOUT_S = 60.0  # a dirty file that is not being uploaded for this long after the workload's end never will be
UNRESPONSIVE_TIMEOUT_S = 300.0  # an rclone that answers no control call for this long is ended and started again
RC_TIMEOUT_S, URGENT_RC_TIMEOUT_S = 2.0, 0.4  # the second applies near the deadline and after it
POLL_INITIAL_S, POLL_MAX_S = 0.02, 0.25
PROGRESS_INTERVAL_S = 10.0
_EXPEDITE_BATCH_SIZE = 500  # control calls (about 1 ms each) between two polls
_MIN_RETRY_INTERVAL_S = 0.5
_FAILURES_TO_GIVE_UP = 2  # failures in a row, within one flush, before a permanent error is accepted as one
_MAX_RESTARTS = 3
_MAX_NAMED_FILES = 5
PERMANENT_ERROR = re.compile(
    r"StatusCode: (401|403|404)|googleapi: Error (403|404)|RESPONSE (401|403|404)"
    r"|NoSuchBucket|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken"
    r"|permission denied|read-only file system|not a directory|no such file or directory|directory not found"
)
_NOISE = re.compile(
    r"(operation error |https response error |, )?(RequestID|HostID): [^,]*,?|, https response error StatusCode: 0"
    r"|^\d+/\d+/\d+ [\d:]+ \w+ *: |Attempt 1/1 failed with 1 errors and: "
    r"|^-{20,}$|^<\?xml[\s\S]*</Error>$",
    re.MULTILINE,
)


def clean_error(text: str) -> str:
    """A store's error message, as rclone returns it, in one line and without request ids and the like."""
    return " ".join(_NOISE.sub("", text).split())


class FlushError(Exception):
    """Cached writes did not reach their buckets. `pending`: path of the mount → its files that are not uploaded."""

    def __init__(self, message: str, pending: dict[str, tuple[PendingFile, ...]]) -> None:
        super().__init__(message)
        self.pending = pending


class CannotFlush(Exception):
    """Waiting longer cannot help this mount."""


class Flushable(Protocol):
    """What flushing needs of a cached mount."""

    path: str
    bucket: str
    cache: VfsCache

    @property
    def rc(self) -> Rc: ...

    def is_alive(self) -> bool:
        """Whether an rclone process serves the cache."""
        ...

    def restart_rclone(self) -> None:
        """Start an rclone on the cache of a dead one, away from `path`. Raises CannotFlush."""
        ...

    def bucket_problem(self) -> str | None:
        """Why uploads cannot succeed any more, if that is known without trying."""
        ...


def flush(mounts: Sequence[Flushable], *, deadline: float | None, log: Callable[[str], None]) -> None:
    """Wait until everything written to `mounts` is in the buckets.

    `supervisor` calls it at the node's end, through `NodeStorage.flush` and `Mounts.flush`.

    `deadline`: time of `clock`; None waits as long as uploads may still succeed. Returns at once when nothing is dirty,
    even after the deadline. Raises FlushError, after flushing what can be flushed: at the deadline, when an upload
    fails permanently (bucket gone, access denied), or when a file stays dirty although nothing uploads it.
    """
    flushes = [_MountFlush(mount, deadline) for mount in mounts]
    failed: dict[str, str] = {}
    started = logged_at = clock.now()
    while flushes:
        flushes = [one for one in flushes if not _is_finished(one, failed)]
        now = clock.now()
        if not flushes:
            break
        if deadline is not None and now >= deadline:
            failed.update({one.mount.path: f"not by the deadline; {one.explain()}" for one in flushes})
            break
        if now - logged_at >= PROGRESS_INTERVAL_S:
            logged_at = now
            log("flushing " + ", ".join(one.progress() for one in flushes))
        pause = min(max((now - started) / 20, POLL_INITIAL_S), POLL_MAX_S)
        time.sleep(pause if deadline is None else min(pause, deadline - now))
    if failed:
        raise _flush_error(mounts, failed)


def _is_finished(one: _MountFlush, failed: dict[str, str]) -> bool:
    """Whether the mount needs no more waiting: it is clean, or was added to `failed`."""
    try:
        return one.poll(clock.now())
    except CannotFlush as error:
        failed[one.mount.path] = str(error)
        return True


@dataclass
class _Attempts:
    """The failed tries of one queued upload."""

    tries: int  # failures at the last poll
    tries_before: int  # failures before this flush
    expedited_at: float


class _MountFlush:
    """The flush of one mount."""

    def __init__(self, mount: Flushable, deadline: float | None) -> None:
        self.mount = mount
        self._deadline = deadline
        self._attempts: dict[int, _Attempts] = {}
        self._stalled_since: float | None = None
        self._unresponsive_since: float | None = None
        self._restarts = 0

    def poll(self, now: float) -> bool:
        """Expedite queued uploads; returns whether everything is in the bucket. Raises CannotFlush."""
        problem = self.mount.bucket_problem()
        if problem and self.mount.cache.dirty_files():
            raise CannotFlush(problem)
        if not self.mount.is_alive():
            return self._restart_or_finish()
        try:
            is_done = self._poll_uploads(now)
        except RcError:
            return self._wait_for_response(now)
        self._unresponsive_since = None
        return is_done

    def _wait_for_response(self, now: float) -> bool:
        """rclone is starting, busy or dying, and the next poll tries again; or it hangs."""
        if self._unresponsive_since is None:
            self._unresponsive_since = now
        if now - self._unresponsive_since < UNRESPONSIVE_TIMEOUT_S:
            return False
        self._unresponsive_since = None
        return self._restart_or_finish()

    def _restart_or_finish(self) -> bool:
        if not self.mount.cache.dirty_files():
            return True
        if self._restarts == _MAX_RESTARTS:
            raise CannotFlush(f"rclone died or hung {_MAX_RESTARTS + 1} times while uploading")
        self._restarts += 1
        self._attempts.clear()
        self.mount.restart_rclone()
        return False

    def _poll_uploads(self, now: float) -> bool:
        queue = self._queue()
        if queue:
            self._stalled_since = None
            self._expedite(queue, now)
            return False
        stats = self._call("vfs/stats")["diskCache"]
        if stats["uploadsQueued"] or stats["uploadsInProgress"]:
            return False
        dirty = self.mount.cache.dirty_files()
        if dirty:
            self._check_stall(dirty, now)
            return False
        return not self._queue()

    def _queue(self) -> list[dict[str, Any]]:
        queue: list[dict[str, Any]] = self._call("vfs/queue")["queue"] or []
        return queue

    def _expedite(self, queue: list[dict[str, Any]], now: float) -> None:
        """Start every queued upload now, in order; retry failed ones without rclone's growing delay."""
        waiting = [item for item in queue if not item["uploading"] and self._may_expedite(item, now)]
        for item in sorted(waiting, key=_expiry)[:_EXPEDITE_BATCH_SIZE]:  # the first one starts at once
            self._call("vfs/queue-set-expiry", id=item["id"], expiry=_expiry(item))
            attempts = self._attempts.setdefault(item["id"], _Attempts(item["tries"], item["tries"], now))
            attempts.tries, attempts.expedited_at = item["tries"], now
            if item["tries"] - attempts.tries_before >= _FAILURES_TO_GIVE_UP:
                self._fail_if_permanent()

    def _may_expedite(self, item: dict[str, Any], now: float) -> bool:
        attempts = self._attempts.get(item["id"])
        return attempts is None or (
            item["tries"] > attempts.tries and now - attempts.expedited_at >= _MIN_RETRY_INTERVAL_S
        )

    def _fail_if_permanent(self) -> None:
        error = self._last_error()
        if PERMANENT_ERROR.search(error):
            raise CannotFlush(error)

    def _check_stall(self, dirty: list[PendingFile], now: float) -> None:
        """Fail when files stay dirty without an upload: they are still open, or rclone has forgotten them."""
        if self._stalled_since is None:
            self._stalled_since = now
        if now - self._stalled_since >= STALL_TIMEOUT_S:
            raise CannotFlush(self._holders(dirty) or "rclone does not upload them and gives no reason")

    def _last_error(self) -> str:
        return clean_error(str(self._call("core/stats").get("lastError", "")))

    def _call(self, method: str, **params: object) -> dict[str, Any]:
        """A control call that does not take much longer than the deadline. Raises RcError."""
        remaining_s = RC_TIMEOUT_S if self._deadline is None else self._deadline - clock.now()
        timeout_s = max(URGENT_RC_TIMEOUT_S, min(RC_TIMEOUT_S, remaining_s))
        return self.mount.rc.call(method, timeout_s=timeout_s, **params)

    def explain(self) -> str:
        """The best available explanation of why the flush takes so long."""
        try:
            text = self._last_error()
        except RcError as error:
            return str(error)
        return (
            text
            or self._holders(self.mount.cache.dirty_files())
            or "the uploads were still in progress, without an error"
        )

    def _holders(self, dirty: Sequence[PendingFile]) -> str:
        paths = {os.path.join(os.path.realpath(self.mount.path), file.name) for file in dirty}
        return "; ".join(f"{path} is still open in process {pid}" for path, pid in open_files(paths))

    def progress(self) -> str:
        dirty = self.mount.cache.dirty_files()
        return f"{self.mount.path}: {_amount(dirty)} left"


def _expiry(item: dict[str, Any]) -> float:
    """The queue is a heap by expiry: small before large, newest (highest id) first."""
    return (-2e9 if item["size"] <= SMALL_BYTES else -1e9) - float(item["id"])


def _flush_error(mounts: Sequence[Flushable], failed: dict[str, str]) -> FlushError:
    pending, parts = {}, []
    for mount in mounts:
        if mount.path in failed:
            dirty = mount.cache.dirty_files()
            pending[mount.path] = tuple(dirty)
            names = ", ".join(f"{file.name} ({_size(file.size)})" for file in dirty[:_MAX_NAMED_FILES])
            more = f" and {len(dirty) - _MAX_NAMED_FILES} more" if len(dirty) > _MAX_NAMED_FILES else ""
            what = f"{_amount(dirty)} did not reach bucket {mount.bucket}: {names}{more}"
            parts.append(f"{mount.path}: {what}: {failed[mount.path]}")
    return FlushError("; ".join(parts), pending)


def _amount(files: Sequence[PendingFile]) -> str:
    return f"{len(files)} file{'' if len(files) == 1 else 's'}, {_size(sum(file.size for file in files))}"


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
