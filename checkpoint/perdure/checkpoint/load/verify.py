"""Verifies a checkpoint: compares its files with its manifests, and marks it accordingly (`damage_marks`).

What a mount shows as damaged is checked a second time before it is called damaged. For some seconds a mount may show
less than there is. rclone and the kernel cache its listing of the bucket and the sizes of files. After a kill, rclone
resumes the uploads that it had not finished. Once such a file is in the bucket, and until its folder is listed again,
rclone takes it for one that was removed there, and shows it empty or not at all. After a refresh of the folder's
listing (`mount_refresh`) it shows what the bucket has.
"""

from __future__ import annotations

import logging
import os
import stat
import time

from perdure.checkpoint.durability import mounts, status
from perdure.checkpoint.durability.file_version import UNKNOWN
from perdure.checkpoint.durability.mounts import MountSnapshot
from perdure.checkpoint.errors import retry_transient
from perdure.checkpoint.format import digest, sampling, step_names
from perdure.checkpoint.format.manifest import FileRecord
from perdure.checkpoint.load import block_compare, damage_marks, mount_refresh
from perdure.checkpoint.load.saved_step import Checkpoint, newest_first, read_step
from perdure.checkpoint.state.worker_threads import WorkerThreads

logger = logging.getLogger("perdure.checkpoint")

_READER_THREADS = 4
_SETTLE_TIMEOUT_S = 1.5  # the kernel caches the attributes of a mount's file for 1 s
_POLL_S = 0.05


def verify_and_mark(checkpoint: Checkpoint, *, trust_marks: bool = True, verify: str = sampling.FULL) -> str | None:
    """Why `checkpoint` must not be loaded, or None if it is whole. It is marked, or unmarked, accordingly.

    `trust_marks`: return the reason of a valid mark without reading files. `verify`: a mode of `sampling`; if there is
    a mark that is not trusted, every byte is read, since only that can remove it. What a mount shows as damaged is
    checked twice (`recheck`). Raises CheckpointUnavailable when a file cannot be read now.
    """
    reason = damage_marks.current_mark(checkpoint)
    if reason and trust_marks:
        return reason
    mode = sampling.FULL if reason else verify
    damage = find_damage(checkpoint, mode, may_show_less=_mount_that_may_show_less(checkpoint.root) is not None)
    if damage is not None and (refreshed := recheck(checkpoint)) is not None:
        checkpoint, damage = refreshed, find_damage(refreshed, mode)
    if damage is None and mode == sampling.FULL:
        damage_marks.unmark(checkpoint)
    elif damage is not None:
        damage_marks.mark(checkpoint, damage)
    return damage


def find_damage(checkpoint: Checkpoint, verify: str = sampling.FULL, *, may_show_less: bool = False) -> str | None:
    """Why `checkpoint` must not be loaded; None if every file is there as it was committed.

    A log or an alias such as `latest.pt` that was overwritten later is left out with a warning, if the checkpoint has
    files of its own, named after its step. Any other file that was overwritten is damage.

    Such a file counts as overwritten if a later step lists it, or its modification time is later than the one that was
    committed, or it is gone. A manifest alone cannot tell: a save that dies after it has overwritten the file leaves
    none, and must not cost the last committed step. Decay of a disk and a truncated upload change no modification time
    to a later one, so they remain damage. So does a file with an earlier time: the bucket received an older one.

    `verify`: a mode of `sampling`. Several files are read at once. `may_show_less`: whether a mount may show files as
    empty or missing that are not; none of these is left out then. Raises CheckpointUnavailable when a file cannot be
    read now.
    """
    if checkpoint.damage:
        return checkpoint.damage
    records = list(checkpoint.files.values())
    has_own = any(step_names.is_named_after(path, checkpoint.step) for path in checkpoint.files)
    snapshot = None if verify == sampling.SIZE else MountSnapshot()

    def check(record: FileRecord) -> str | None:
        damage = find_file_damage(checkpoint.root, record, checkpoint.step, verify, snapshot)
        if damage and has_own and (cause := _why_overwritten(checkpoint, record, may_show_less)):
            logger.warning(
                "step %d in %s: %s %s, so it is not verified; do not rely on its content",
                *(checkpoint.step, checkpoint.root, cause, record.path),
            )
            return None
        return damage

    threads = 0 if verify == sampling.SIZE or len(records) == 1 else _READER_THREADS
    with WorkerThreads(threads, "perdure-verify") as readers:
        return next(filter(None, readers.map(check, records, ahead=2 * _READER_THREADS)), None)


def find_file_damage(
    root: str, record: FileRecord, step: int, verify: str = sampling.FULL, snapshot: MountSnapshot | None = None
) -> str | None:
    """Why a file is not what was committed; None if it is. `verify`: a mode of `sampling`.

    A file that is not named after its step may have grown since, as logs do: then its first `size` bytes must match.
    """
    path = os.path.join(root, record.path)
    try:
        now = retry_transient(lambda: os.stat(path), path)
        if not stat.S_ISREG(now.st_mode):
            return f"{record.path} is no longer a file"
        may_have_grown = not step_names.is_named_after(record.path, step)
        if now.st_size < record.size or (now.st_size > record.size and not may_have_grown):
            return f"{record.path} has {now.st_size} bytes instead of {record.size}"
        if verify == sampling.SIZE:
            return None
        content = status.readable_path(path, snapshot)
        if verify == sampling.SAMPLED and record.sample:
            expected = record.sample
            actual = retry_transient(lambda: sampling.hash_sample(content, record.algorithm, record.size), path)
        elif record.block_bytes:
            retry_transient(lambda: block_compare.compare(content, record), path)
            return None
        else:
            expected = record.digest
            actual = retry_transient(lambda: digest.hash_file(content, record.algorithm, length=record.size), path)
    except (FileNotFoundError, NotADirectoryError):
        return f"{record.path} is missing"
    except block_compare.DamagedFile as damage:
        return str(damage)
    except digest.UnknownAlgorithm:
        return f"{record.path} has a digest of an unknown kind ({record.algorithm})"
    return None if actual == expected else f"{record.path} differs from what was saved ({record.algorithm})"


def _why_overwritten(checkpoint: Checkpoint, record: FileRecord, may_show_less: bool) -> str | None:
    """What has overwritten a file that `checkpoint` can do without; None if it needs it, or nothing has."""
    if not step_names.is_dispensable(record.path, checkpoint.step, checkpoint.files):
        return None
    later = (one for one in newest_first(checkpoint.root, checkpoint.prefix) if one.step > checkpoint.step)
    if any(record.path in one.files for one in later):
        return "a later step has overwritten"
    if record.version in (None, UNKNOWN):
        return None
    path = os.path.join(checkpoint.root, record.path)
    try:
        now = retry_transient(lambda: os.stat(path), path)
    except (FileNotFoundError, NotADirectoryError):
        return None if may_show_less else "a save that was not committed has removed"
    if not stat.S_ISREG(now.st_mode) or (may_show_less and now.st_size == 0):
        return None
    # Not the latest time that it may have had: that lies in the future of a file system's clock, which runs in ticks.
    is_later = now.st_mtime_ns > record.mtime_ns[0]
    return "a save that was not committed has overwritten" if is_later else None


def _mount_that_may_show_less(root: str) -> mounts.Mount | None:
    mount = mounts.find_mount(root)
    return None if mount is None or os.path.islink(mount.path) else mount


def recheck(first: Checkpoint) -> Checkpoint | None:
    """The checkpoint as its mount shows it after a refresh; None if it is not on a mount.

    Waits a moment for files that are missing or have the wrong size. Raises CheckpointUnavailable.
    """
    if _mount_that_may_show_less(first.root) is None:
        return None
    mount_refresh.refresh(first.root, {os.path.dirname(path) for path in first.files})
    ends_at = time.monotonic() + _SETTLE_TIMEOUT_S
    while True:
        current = read_step(first.root, first.prefix, first.step)
        if find_damage(current, sampling.SIZE, may_show_less=True) is None or time.monotonic() >= ends_at:
            return current
        time.sleep(_POLL_S)
