"""Watches uploads, and journals a committed checkpoint as durable once its bucket has every file of it.

`link.checkpoint_stream` sends the line to the controller.

A checkpoint on a write-back mount is durable when rclone's records of all its files are clean, and are of the content
that was committed (ADR 0005). Where close() waits for the upload (`MOUNT`, or a link to a local bucket), it is durable
as soon as it is committed. A checkpoint on the machine's own disk is never durable.

The agent of the node that committed a checkpoint answers for all of its files. Those that other nodes wrote have no
record here: they count once the bucket, as the mount lists it, has the content that was committed.

Uploads are polled only while a checkpoint is pending. The records are on the local disk; the mount itself is accessed
only for a file without a record of the committed content: it was evicted after its upload, written by another node,
replaced, or removed.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from perdure.agent.storage.checkpoint_journal import CheckpointJournal, CommittedCheckpoint
from perdure.agent.storage.vfs_cache import UploadState, VfsCache
from perdure.checkpoint.durability import mount_table
from perdure.checkpoint.durability.file_version import FileVersion, have_replaced

POLL_S = 0.25
MOUNT_POLL_S = 1.0  # between two looks through the mount, which lists the bucket only every 10 s
MAX_UNMOUNTED = 100
MAX_CPU_SHARE = 0.05  # a long backlog, as of a store that is down for hours, is polled in turns


@dataclass(frozen=True)
class BucketMount:
    """A bucket that is mounted or linked on this node."""

    paths: tuple[str, ...]  # the mountpoint, as the task and as the kernel name it
    cache: VfsCache | None  # None: a file is in the bucket when it is closed
    is_lost: Callable[[], bool]
    is_folder: bool = False  # an ordinary folder, which shows files that the bucket does not have

    def name_of(self, path: str) -> str | None:
        """`path` relative to the mount; None when it lies elsewhere."""
        for top in self.paths:
            if path.startswith(top.rstrip("/") + "/"):
                return path[len(top.rstrip("/")) + 1 :]
        return None


class Upload(Enum):
    """How far the upload of a checkpoint is."""

    PENDING = "pending"
    DONE = "done"
    REMOVED = "removed"  # the checkpoint was deleted before it was durable


class PendingCheckpoint:
    """A committed checkpoint that was not yet seen whole in its bucket."""

    def __init__(self, checkpoint: CommittedCheckpoint, mount: BucketMount) -> None:
        self.checkpoint = checkpoint
        self._mount = mount
        self._versions: dict[str, FileVersion | None] = dict(zip(checkpoint.files, checkpoint.versions))
        self._versions[checkpoint.path] = None  # no manifest's name is used twice
        self.reused_files = [path for path, version in self._versions.items() if version is not None]
        self._names = {path: _name_on(mount, path) for path in self._versions}
        self._waits_for = checkpoint.path  # pending at the last poll: most polls read this record alone
        self._accesses_mount_at = float("-inf")

    def replaces(self, other: PendingCheckpoint) -> bool:
        """Whether this one's save has overwritten a file of `other`, so that the bucket never has all of `other`."""
        return have_replaced(self._versions, other._versions)

    def poll(self) -> Upload:
        """The state now. All files must be clean in one pass, since a later step may overwrite one of them."""
        for path in (self._waits_for, *self._names):
            upload = self._poll_file(path)
            if upload is not Upload.DONE:
                self._waits_for = path
                return upload
        return Upload.DONE

    def _poll_file(self, path: str) -> Upload:
        cache, name, version = self._mount.cache, self._names[path], self._versions[path]
        if cache is None:
            return self._poll_through_mount(path, None)
        if name is None:
            return Upload.PENDING  # it lies elsewhere: the records do not cover it
        state = cache.upload_state(name, version)
        if state is UploadState.UNRECORDED:
            return self._poll_through_mount(path, version)
        return Upload.DONE if state is UploadState.UPLOADED else Upload.PENDING

    def _poll_through_mount(self, path: str, version: FileVersion | None) -> Upload:
        """The state of a file that is not in this node's cache as it was committed.

        The mount then shows the bucket's copy.
        """
        now = time.monotonic()
        if now < self._accesses_mount_at:
            return Upload.PENDING
        try:
            status = os.stat(path)
        except FileNotFoundError:
            pass  # another node may not have uploaded its part
        except OSError:
            return Upload.PENDING
        else:
            if not self._mount.is_folder and (version is None or version.matches(status.st_size, status.st_mtime_ns)):
                return Upload.DONE
        if self._mount.is_lost():
            return Upload.PENDING
        self._accesses_mount_at = now + MOUNT_POLL_S
        try:
            os.stat(self.checkpoint.path)
        except FileNotFoundError:
            return Upload.REMOVED
        except OSError:
            pass
        return Upload.PENDING


def _name_on(mount: BucketMount, path: str) -> str | None:
    return mount.name_of(os.path.normpath(path)) or mount.name_of(os.path.realpath(path))


class DurabilityWatcher:
    """The only writer of `durable` lines.

    `mounts`: returns the buckets that are mounted on this node; called for every new checkpoint. The journal is the
    whole state: a restarted agent continues with the checkpoints that are committed there and not yet durable.
    """

    def __init__(
        self,
        journal: CheckpointJournal,
        mounts: Callable[[], Sequence[BucketMount]],
        *,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """`log`: receives a line for each problem that should not occur."""
        self._journal = journal
        self._mounts = mounts
        self._log = log
        self._lock = threading.Lock()
        self._committed: deque[CommittedCheckpoint] = deque()  # whose mounts are not looked up yet
        self._pending: OrderedDict[str, PendingCheckpoint] = OrderedDict()  # by manifest; the next one to poll first
        self._pending_with: dict[str, set[str]] = {}  # file that may be overwritten → the manifests that are pending
        self._unmounted: dict[str, CommittedCheckpoint] = {}  # on no mount when they were looked up; by manifest
        self._mounts_changed = False
        self._stopped = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="durability", daemon=True)
        self._woken.set()  # the journal may have lines

    def start(self) -> None:
        """Watch until `stop`."""
        self._thread.start()

    def mounts_changed(self) -> None:
        """Buckets were mounted: look up the mount of each checkpoint again that was on none. From any thread."""
        self._mounts_changed = True
        self._woken.set()

    def wake(self) -> None:
        """The journal has grown. From any thread."""
        self._woken.set()

    def stop(self) -> None:
        """From any thread; does not wait for a poll that is under way."""
        self._stopped.set()
        self._woken.set()

    def poll(self) -> None:
        """Journal every checkpoint that has become durable. From any thread."""
        self._poll_for(float("inf"))

    def poll_within(self, timeout_s: float) -> bool:
        """As `poll`; returns whether it ended in time. A mount that hangs may hold it up for ever."""
        poll = threading.Thread(target=self.poll, name="durability-poll", daemon=True)
        poll.start()
        poll.join(timeout_s)
        return not poll.is_alive()

    def _run(self) -> None:
        while not self._stopped.is_set():
            if not self._pending and not self._committed:
                self._woken.wait()
            self._woken.clear()
            spent_s = self._poll_for(POLL_S * MAX_CPU_SHARE)
            self._stopped.wait(max(POLL_S, spent_s / MAX_CPU_SHARE))

    def _poll_for(self, cpu_s: float) -> float:
        """As `poll`, but only as many checkpoints as `cpu_s` allows; returns the CPU seconds spent.

        The others have their turn at the next call. Checkpoints that are durable are not polled again.
        """
        with self._lock:
            began = time.thread_time()
            if self._mounts_changed:
                self._mounts_changed = False
                self._committed.extend(self._unmounted.values())
                self._unmounted.clear()
            self._committed.extend(self._journal.read_committed())
            while self._committed:
                self._guarded(self._committed.popleft(), self._add)
                if time.thread_time() - began >= cpu_s:
                    break
            for _ in range(len(self._pending)):
                manifest, polled_at = next(iter(self._pending)), time.thread_time()
                self._pending.move_to_end(manifest)
                self._guarded(self._pending[manifest].checkpoint, self._poll_one)
                if manifest not in self._pending:
                    began += time.thread_time() - polled_at
                elif time.thread_time() - began >= cpu_s:
                    break
            return time.thread_time() - began

    def _guarded(self, checkpoint: CommittedCheckpoint, act: Callable[[CommittedCheckpoint], None]) -> None:
        """`act(checkpoint)`. What the workload committed may not end the watch over its other checkpoints."""
        try:
            act(checkpoint)
        except Exception as error:  # noqa: BLE001 - any: see above
            self._forget(checkpoint.path)
            self._log(f"watching the upload of {checkpoint.path!a}: {error!r}; it is not reported as durable")

    def _add(self, checkpoint: CommittedCheckpoint) -> None:
        mount = self._mount_of(checkpoint.path)
        if mount is None:
            self._unmounted[checkpoint.path] = checkpoint
            if len(self._unmounted) > MAX_UNMOUNTED:
                del self._unmounted[next(iter(self._unmounted))]
            return
        new = PendingCheckpoint(checkpoint, mount)
        for manifest in set().union(*(self._pending_with.get(path, ()) for path in new.reused_files)):
            if new.replaces(self._pending[manifest]):
                self._forget(manifest)
        self._forget(checkpoint.path)
        self._pending[checkpoint.path] = new
        for path in new.reused_files:
            self._pending_with.setdefault(path, set()).add(checkpoint.path)

    def _forget(self, manifest: str) -> None:
        pending = self._pending.pop(manifest, None)
        for path in pending.reused_files if pending is not None else ():
            self._pending_with[path].discard(manifest)
            if not self._pending_with[path]:
                del self._pending_with[path]

    def _poll_one(self, checkpoint: CommittedCheckpoint) -> None:
        upload = self._pending[checkpoint.path].poll()
        if upload is Upload.REMOVED or (upload is Upload.DONE and self._append(checkpoint)):
            self._forget(checkpoint.path)

    def _append(self, checkpoint: CommittedCheckpoint) -> bool:
        try:
            self._journal.append_durable(checkpoint)
        except OSError:
            return False  # the disk is full: the next poll tries again
        return True

    def _mount_of(self, path: str) -> BucketMount | None:
        """The innermost mount that holds `path`; also one that the user made."""
        resolved = os.path.realpath(path)
        holders = [mount for mount in self._mounts() if mount.name_of(path) or mount.name_of(resolved)]
        innermost = max(holders, key=lambda mount: max(map(len, mount.paths)), default=None)
        return innermost or _foreign_mount(path)


def _foreign_mount(path: str) -> BucketMount | None:
    """The rclone mount of `path` that this agent did not make, such as the user's own. None for any other file system:
    it is a disk of this machine, or the agent cannot tell when it stores a file elsewhere."""
    entry = mount_table.find_mount_entry(path, mount_table.entries())
    server = mount_table.find_server(entry) if entry is not None else None
    if entry is None or server is None:
        return None
    remote, colon, target = _split_source(entry.source)
    if server.cache_dir is not None and not colon:
        return None
    cache = VfsCache(Path(server.cache_dir), target, remote=remote) if server.cache_dir is not None else None
    return BucketMount(
        (entry.path,), cache, is_lost=lambda: mount_table.source_at(entry.path, mount_table.entries()) is None
    )


def _split_source(source: str) -> tuple[str, str, str]:
    """`remote:folder` as (remote, ":", folder). The name of an unnamed remote begins with a colon: `:s3{4vgl3}:b`."""
    first, rest = source[:1], source[1:]
    remote, colon, target = rest.partition(":")
    return first + remote, colon, target
