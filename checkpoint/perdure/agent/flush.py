"""Bringing cached writes into their buckets, and knowing that they are there.

What tells is the cache's own record of each file (`vfs_cache`). rclone's counters alone are not enough: right after
close() they still read 0 (the kernel sends RELEASE asynchronously), and a file that is still open is in none of them.
Nor are the records alone: a rename between two directories can hide a file from one walk of the tree. So a mount is
clean when the queue is empty, then no record is dirty, then the queue is empty still.

Order: small files first (manifests, logs), then large ones, the newest first within both, because a machine that is
about to be taken should at least complete its newest checkpoint. Readers verify sizes, so a manifest that arrives
before its data is refused, not believed.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from perdure.agent import clock
from perdure.agent.vfs_cache import Cache, PendingFile
from perdure.checkpoint.rc import Rc, RcError

SMALL_BYTES = 1 << 20
STALLED_S = 60.0  # a dirty file that nothing uploads for this long, after the workload's end, never will be
POLL_FIRST_S, POLL_LAST_S = 0.02, 0.25
PROGRESS_EVERY_S = 10.0
_EXPEDITE_AT_ONCE = 500  # control calls (about 1 ms each) between two looks
_RETRY_FASTEST_S = 0.5
_TRIES_TO_BELIEVE = 2  # failures in a row, within one flush, before an error that can not pass is believed
_MAX_REVIVALS = 3
_NAMED_AT_MOST = 5
CAN_NOT_PASS = re.compile(
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


def plain(said: str) -> str:
    """A store's words, as rclone passes them on, in one line and without what tells a reader nothing."""
    return " ".join(_NOISE.sub("", said).split())


class FlushError(Exception):
    """Cached writes did not reach their buckets. `pending`: path of the mount → its files that are not uploaded."""

    def __init__(self, message: str, pending: dict[str, tuple[PendingFile, ...]]) -> None:
        super().__init__(message)
        self.pending = pending


class CannotFlush(Exception):
    """Waiting longer can not help this mount."""


class Flushable(Protocol):
    """What flushing needs of a cached mount."""

    path: str
    bucket: str
    cache: Cache

    @property
    def rc(self) -> Rc: ...

    def alive(self) -> bool:
        """Whether an rclone works on the cache."""
        ...

    def revive(self) -> None:
        """Start an rclone on the cache of a dead one, away from `path`. Raises CannotFlush."""
        ...

    def bucket_problem(self) -> str | None:
        """Why nothing should be uploaded any more, where that can be seen without trying."""
        ...


def flush(mounts: Sequence[Flushable], *, deadline: float | None, log: Callable[[str], None]) -> None:
    """Wait until everything written to `mounts` is in the buckets.

    `deadline`: time of `clock`; None waits as long as uploads may still succeed. Returns at once when nothing is dirty,
    even after the deadline. Raises FlushError, after having flushed what can be flushed: at the deadline, when an
    upload fails for a reason that can not pass (bucket gone, access denied), or when a file stays dirty though nothing
    uploads it.
    """
    drains = [_Drain(mount) for mount in mounts]
    failed: dict[str, str] = {}
    started = told = clock.now()
    while drains:
        drains = [drain for drain in drains if not _finished(drain, failed)]
        now = clock.now()
        if not drains:
            break
        if deadline is not None and now >= deadline:
            failed.update({drain.mount.path: f"not by the deadline; {drain.trouble()}" for drain in drains})
            break
        if now - told >= PROGRESS_EVERY_S:
            told = now
            log("flushing " + ", ".join(drain.progress() for drain in drains))
        pause = min(max((now - started) / 20, POLL_FIRST_S), POLL_LAST_S)
        time.sleep(pause if deadline is None else min(pause, deadline - now))
    if failed:
        raise _flush_error(mounts, failed)


def _finished(drain: _Drain, failed: dict[str, str]) -> bool:
    """Whether there is no more to wait for: it is clean, or it is in `failed` now."""
    try:
        return drain.look(clock.now())
    except CannotFlush as error:
        failed[drain.mount.path] = str(error)
        return True


@dataclass
class _Try:
    tries: int  # failures when last looked at
    first_tries: int  # failures before this flush
    hurried_at: float


class _Drain:
    """One mount on its way to being clean."""

    def __init__(self, mount: Flushable) -> None:
        self.mount = mount
        self._seen: dict[int, _Try] = {}
        self._stalled_since: float | None = None
        self._revivals = 0

    def look(self, now: float) -> bool:
        """Hurry what waits, and say whether all is in the bucket. Raises CannotFlush."""
        problem = self.mount.bucket_problem()
        if problem and self.mount.cache.dirty():
            raise CannotFlush(problem)
        if not self.mount.alive():
            return self._revived_or_clean()
        try:
            return self._look(now)
        except RcError:
            return False  # it is starting, busy or dying: the next look tells

    def _revived_or_clean(self) -> bool:
        if not self.mount.cache.dirty():
            return True
        if self._revivals == _MAX_REVIVALS:
            raise CannotFlush(f"rclone died {_MAX_REVIVALS} times while uploading")
        self._revivals += 1
        self._seen.clear()
        self.mount.revive()
        return False

    def _look(self, now: float) -> bool:
        queue = self._queue()
        if queue:
            self._stalled_since = None
            self._hurry(queue, now)
            return False
        stats = self.mount.rc.call("vfs/stats")["diskCache"]
        if stats["uploadsQueued"] or stats["uploadsInProgress"]:
            return False
        dirty = self.mount.cache.dirty()
        if dirty:
            self._check_stall(dirty, now)
            return False
        return not self._queue()

    def _queue(self) -> list[dict[str, Any]]:
        queue: list[dict[str, Any]] = self.mount.rc.call("vfs/queue")["queue"] or []
        return queue

    def _hurry(self, queue: list[dict[str, Any]], now: float) -> None:
        """Let every queued file go now, in order; a failed one is tried again without its growing delay."""
        waiting = [item for item in queue if not item["uploading"] and self._may_hurry(item, now)]
        for item in sorted(waiting, key=_expiry)[:_EXPEDITE_AT_ONCE]:  # the first one said starts at once
            self.mount.rc.call("vfs/queue-set-expiry", id=item["id"], expiry=_expiry(item))
            seen = self._seen.setdefault(item["id"], _Try(item["tries"], item["tries"], now))
            seen.tries, seen.hurried_at = item["tries"], now
            if item["tries"] - seen.first_tries >= _TRIES_TO_BELIEVE:
                self._give_up_if_hopeless()

    def _may_hurry(self, item: dict[str, Any], now: float) -> bool:
        seen = self._seen.get(item["id"])
        return seen is None or (item["tries"] > seen.tries and now - seen.hurried_at >= _RETRY_FASTEST_S)

    def _give_up_if_hopeless(self) -> None:
        error = self._last_error()
        if CAN_NOT_PASS.search(error):
            raise CannotFlush(error)

    def _check_stall(self, dirty: list[PendingFile], now: float) -> None:
        """Dirty, but nothing uploads: still open, or forgotten by rclone."""
        if self._stalled_since is None:
            self._stalled_since = now
        if now - self._stalled_since >= STALLED_S:
            raise CannotFlush(self._holders(dirty) or "rclone does not upload them, and does not say why")

    def _last_error(self) -> str:
        return plain(str(self.mount.rc.call("core/stats").get("lastError", "")))

    def trouble(self) -> str:
        """The best explanation at hand of why this takes so long."""
        try:
            said = self._last_error()
        except RcError as error:
            return str(error)
        return said or self._holders(self.mount.cache.dirty()) or "the uploads were still going on, without an error"

    def _holders(self, dirty: Sequence[PendingFile]) -> str:
        paths = {os.path.join(os.path.realpath(self.mount.path), file.name) for file in dirty}
        return "; ".join(f"{path} is still open in process {pid}" for path, pid in _open_files(paths))

    def progress(self) -> str:
        dirty = self.mount.cache.dirty()
        return f"{self.mount.path}: {_amount(dirty)} left"


def _expiry(item: dict[str, Any]) -> float:
    """The queue is a heap by expiry: small before large, newest (highest id) first."""
    return (-2e9 if item["size"] <= SMALL_BYTES else -1e9) - float(item["id"])


def _open_files(paths: set[str]) -> Iterator[tuple[str, int]]:
    for descriptor in glob.iglob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            path = os.readlink(descriptor)
            if path in paths:
                yield path, int(descriptor.split("/")[2])


def _flush_error(mounts: Sequence[Flushable], failed: dict[str, str]) -> FlushError:
    pending, parts = {}, []
    for mount in mounts:
        if mount.path in failed:
            dirty = mount.cache.dirty()
            pending[mount.path] = tuple(dirty)
            names = ", ".join(f"{file.name} ({_size(file.size)})" for file in dirty[:_NAMED_AT_MOST])
            more = f" and {len(dirty) - _NAMED_AT_MOST} more" if len(dirty) > _NAMED_AT_MOST else ""
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
