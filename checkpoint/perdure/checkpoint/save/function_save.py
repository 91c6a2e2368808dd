"""Saves what the user's function writes: call it once, find out which files it wrote, commit them.

This serves `@save_checkpoint` and the Lightning plugin, where other code writes the files. `Checkpointer` and `Folders`
commit without it. What a commit is, and what follows it, is in `save.finish_step`.

A save has three phases, each with its own failure. The call: its exception passes through, and the files it wrote stay
uncommitted. The commit: CheckpointError; the call is not repeated. The clean-up (old checkpoints, superseded
manifests): only warnings. A step that is saved again keeps its old manifest until the new one is committed. If the call
fails half-way, a load can still tell from the old manifest whether the old files are intact.

Files are read once right after they were written, for their digests. They come from the page cache, and on a mount with
write-back from rclone's own copy, since reading them through the mount would start the write-back delay anew.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from perdure.checkpoint.durability.file_version import MAX_GROWING_BYTES, FileVersion
from perdure.checkpoint.errors import FULL_ERRNOS, CheckpointError, CheckpointUnavailable
from perdure.checkpoint.format import digest, file_changes, manifest, part_names, sampling, step_names
from perdure.checkpoint.format.file_changes import Stamp
from perdure.checkpoint.format.manifest import FileRecord, Manifest
from perdure.checkpoint.load.directory_cache import DirectoryCache
from perdure.checkpoint.load.verify import find_file_damage
from perdure.checkpoint.save import first_upload
from perdure.checkpoint.save.exclusive import exclusive
from perdure.checkpoint.save.finish_step import Series, build_manifest, finish
from perdure.checkpoint.save.save_directory import SaveDirectory

logger = logging.getLogger("perdure.checkpoint")

T = TypeVar("T")

_FULL_BYTES = 1024 * 1024  # a disk with less room is full
_MAX_READS = 3  # a file that differs every time it is read is still being written


def save(series: Series, step: int, call: Callable[[], T], directory: SaveDirectory | None = None) -> T:
    """Call `call` and commit what it wrote under `series.root` as the checkpoint of `step`; returns what it returned.

    `directory`: the save's view of `series.root`, where the caller has one already.

    Raises what `call` raises; CheckpointUnavailable when the directory's mount is missing (then `call` is not called);
    CheckpointError when `call` wrote nothing, an empty file, or something that cannot be committed.
    """
    directory = directory or SaveDirectory.open(series.root)
    try:
        os.makedirs(series.root, exist_ok=True)
    except OSError as error:
        raise _cannot_be_used(series, step, error) from error
    with exclusive(series.root, directory.cache):
        before = _prepare(series, step, directory)
        try:
            result = call()
        except Exception as error:
            if _is_full(series.root, error):
                _remove_half_files(series, step, before, directory)
            raise
        committed = _commit(series, step, before, directory)
        logger.info("saved step %d in %s (%d files)", step, series.root, len(committed.files))
        finish(series, committed, directory)
    return result


def _prepare(series: Series, step: int, directory: SaveDirectory) -> dict[str, Stamp]:
    try:
        before = file_changes.scan(series.root, series.ignore)
        if not directory.entries():
            directory.mark_started(series.prefix, step)
    except OSError as error:
        raise _cannot_be_used(series, step, error) from error
    file_changes.wait_for_clock_tick(before)
    return before


def _is_full(root: str, error: Exception) -> bool:
    """Whether the function failed because the disk is full. Frameworks report that in many ways."""
    try:
        space = os.statvfs(root)
    except OSError:
        return False
    is_reported = isinstance(error, OSError) and error.errno in FULL_ERRNOS
    return is_reported or space.f_bavail * space.f_frsize < _FULL_BYTES


def _remove_half_files(series: Series, step: int, before: Mapping[str, Stamp], directory: SaveDirectory) -> None:
    """Remove the files of a step that could not be written to the end: later saves need their room."""
    try:
        directory.forget_listing()
        committed = {path for each in directory.checkpoints() for path in each.files}
        for path in file_changes.scan(series.root, series.ignore).keys() - before.keys() - committed:
            if step_names.is_named_after(path, step) and not part_names.is_of_checkpointer(path):
                os.unlink(os.path.join(series.root, path))
                logger.warning("removed %s, which was not complete when the disk was full", path)
    except (OSError, CheckpointUnavailable) as error:
        logger.warning("removing what was written of step %d to %s: %s", step, series.root, error)


def _cannot_be_used(series: Series, step: int, error: OSError) -> CheckpointUnavailable:
    return CheckpointUnavailable(f"saving step {step}: {series.root} cannot be used: {error}")


def _commit(series: Series, step: int, before: dict[str, Stamp], directory: SaveDirectory) -> Manifest:
    root = series.root
    try:
        written = file_changes.changed(before, file_changes.scan(root, series.ignore))
        written = {path: stamp for path, stamp in written.items() if not part_names.is_of_checkpointer(path)}
        _require_content(series, step, written)
        algorithm = digest.preferred_algorithm()
        records = [
            digest_file(directory, path, algorithm, may_grow=not step_names.is_named_after(path, step))
            for path in written
        ]
        others = _records_of_others(series, directory) if written.keys() - before.keys() else {}
        own = [
            record
            for record in records
            if not _belongs_to_another(record, step, directory.cache)
            and (record.path in before or not _is_of_another_series(record, others))
        ]
        if not own:
            raise _nothing_written(series, step)
        for folder in sorted({os.path.dirname(os.path.join(root, record.path)) for record in own}):
            manifest.sync_directory(folder)
        first_upload.wait_if_first(directory, series.prefix, [os.path.join(root, record.path) for record in own])
        committed = directory.commit(build_manifest(series, step, own))
    except OSError as error:
        raise CheckpointError(
            f"committing step {step} in {root}: {error}. What the function wrote does not count as a checkpoint; make "
            "room or repair the disk, then save again."
        ) from error
    _warn_of_overwritten(directory, committed, before)
    return committed


def _require_content(series: Series, step: int, written: Mapping[str, Stamp]) -> None:
    if not written:
        raise _nothing_written(series, step)
    empty = [path for path, stamp in written.items() if stamp.size == 0]
    if empty:
        raise CheckpointError(
            f"saving step {step}: {', '.join(empty)} in {series.root} is empty, so the step is not committed. If it is "
            f"meant to be, leave it out of checkpoints: save_checkpoint(..., ignore=[{os.path.basename(empty[0])!r}])."
        )


def _nothing_written(series: Series, step: int) -> CheckpointError:
    return CheckpointError(
        f"saving step {step}: the function returned, but no file under {series.root} was created or changed. Write the "
        "checkpoint below that directory (not behind a symbolic link), or pass the directory it writes to as save_dir."
    )


def digest_file(directory: SaveDirectory, path: str, algorithm: str, *, may_grow: bool) -> FileRecord:
    """The record of a file that was written, which is flushed to its disk. `path`: relative to the directory.

    `may_grow`: other code may append to it later. Raises OSError, and CheckpointError if it is still being written.
    """
    absolute, previous = os.path.join(directory.root, path), ""
    for _ in range(_MAX_READS):
        seen = os.stat(absolute)
        before, version = Stamp.from_stat(seen), FileVersion.from_stat(seen)
        content = directory.readable_path(absolute)
        current = digest.hash_file(content, algorithm, length=before.size, sync=True)
        seen = os.stat(absolute)
        after = Stamp.from_stat(seen)
        # A mount may set the time of a file a moment after it was closed; equal content twice is proof enough.
        if after == before or (after.size == before.size and current == previous):
            if after != before:
                version = FileVersion.from_stat(seen)
            sample = sampling.hash_sample(content, algorithm, before.size)
            times = (version.earliest_ns, version.latest_ns)
            crc32 = digest.crc32_of(content, before.size) if may_grow and before.size <= MAX_GROWING_BYTES else -1
            return FileRecord(path, before.size, current, algorithm, sample, times, crc32)
        previous = current
    raise CheckpointError(
        f"{absolute} is still being written after the save function returned: let the function wait for its writers. "
        f"If the file is a log, leave it out of checkpoints: save_checkpoint(..., ignore=[{os.path.basename(path)!r}])."
    )


def _belongs_to_another(record: FileRecord, step: int, cache: DirectoryCache) -> bool:
    """Whether the file belongs to another step, whose name it has, and was only touched: its content is unchanged."""
    if step_names.is_named_after(record.path, step):
        return False
    others = (other for other in cache.recent if step_names.is_named_after(record.path, other.step))
    return any(record in other.files for other in others)


def _records_of_others(series: Series, directory: SaveDirectory) -> dict[str, list[FileRecord]]:
    """Path → what other series have committed under it."""
    others: dict[str, list[FileRecord]] = {}
    if any(entry.prefix != series.prefix for entry in directory.entries()):
        directory.forget_listing()  # they may have committed during the call
        for one in (one for each in directory.checkpoints() for one in each.manifests if one.prefix != series.prefix):
            for record in one.files:
                others.setdefault(record.path, []).append(record)
    return others


def _is_of_another_series(record: FileRecord, others: Mapping[str, Sequence[FileRecord]]) -> bool:
    """Whether the file is as another series has committed it: it only became visible here during the call."""
    versions = (other.version for other in others.get(record.path, ()) if other == record)
    earliest = record.mtime_ns[0] if record.mtime_ns else None
    return any(version is not None and version.matches(record.size, earliest) for version in versions)


def _warn_of_overwritten(directory: SaveDirectory, committed: Manifest, before: Mapping[str, Stamp]) -> None:
    """Warn about each file, once, that is saved under the same name at every step: no older step can be loaded then."""
    root, cache = directory.root, directory.cache
    overwritten = committed.paths & before.keys() - cache.warned
    for older in cache.recent:
        for record in older.files:
            if older.step == committed.step or record.path not in overwritten or record.path in cache.warned:
                continue
            cache.warned.add(record.path)
            if find_file_damage(root, record, older.step, snapshot=directory.mounts):
                is_needed = not step_names.is_dispensable(record.path, older.step, older.paths)
                logger.warning(
                    "saving step %d overwrote %s, which is part of step %d: %s. Put the step into the file's name, or "
                    "leave the file out: save_checkpoint(..., ignore=[%r]).",
                    *(committed.step, record.path, older.step),
                    "only the newest step can be loaded" if is_needed else "older steps are loaded without it",
                    os.path.basename(record.path),
                )
