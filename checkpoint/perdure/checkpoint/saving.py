"""One save: call the user's function once, find out what it wrote, commit that.

Phases, each with its own failure. The call: its exception passes through, and what it wrote stays uncommitted. The
commit: CheckpointError, the call is not repeated. What follows (removing old checkpoints, telling the agent) can only
warn. A step saved again keeps its old manifest until the new one is committed: should the call fail half-way, the old
one still tells a load exactly whether the old files are intact.

Files are read once right after they were written, for their digests; they come from the page cache, and on a mount with
write-back from rclone's own copy, since reading them through the mount would start the write-back delay anew.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, TypeVar

from perdure.checkpoint import (
    checkpoints,
    digest,
    durability,
    first,
    journal,
    manifest,
    memory,
    names,
    retention,
    samples,
    snapshot,
)
from perdure.checkpoint.checkpoints import Checkpoint
from perdure.checkpoint.errors import CheckpointError, CheckpointUnavailable
from perdure.checkpoint.keep import Keep
from perdure.checkpoint.manifest import FileRecord, Manifest
from perdure.checkpoint.snapshot import Stamp

logger = logging.getLogger("perdure.checkpoint")

T = TypeVar("T")

_JOB = re.compile(r"_(?P<id>\d+)-\d+$")  # the end of a task ID: the job's number, the task's place in it
_READS = 3  # a file that differs every time it is read is still being written
_FRAMEWORKS = ("torch", "jax", "tensorflow", "numpy", "safetensors")


@dataclass(frozen=True)
class Series:
    """Checkpoints of one prefix in one directory, and which of them to keep (None: all).

    `saves_all`: one save holds all of its step. Otherwise several functions may each save a part of a step.
    """

    root: str
    prefix: str
    keep: Keep | None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    ignore: Sequence[str] = ()
    saves_all: bool = False


def save(series: Series, step: int, call: Callable[[], T]) -> T:
    """Call `call` and commit what it wrote under `series.root` as the checkpoint of `step`; returns what it returned.

    Raises what `call` raises; CheckpointUnavailable when the directory's mount is missing (then `call` is not called);
    CheckpointError when `call` wrote nothing, an empty file, or something that can not be committed.
    """
    root = series.root
    known = memory.of(root)
    with known.lock:
        durability.require_mounted(root)
        before = _prepared(series, step)
        result = call()
        committed = _commit(series, step, before, known)
        logger.info("saved step %d in %s (%d files)", step, root, len(committed.files))
        after(series, committed, known)
    return result


def _prepared(series: Series, step: int) -> dict[str, Stamp]:
    try:
        os.makedirs(series.root, exist_ok=True)
        before = snapshot.take(series.root, series.ignore)
        if not manifest.entries(series.root):
            manifest.announce(series.root, series.prefix, step)
    except OSError as error:
        raise CheckpointUnavailable(f"saving step {step}: {series.root} can not be used: {error}") from error
    snapshot.settle(before)
    return before


def _commit(series: Series, step: int, before: dict[str, Stamp], known: memory.Memory) -> Manifest:
    root = series.root
    try:
        written = snapshot.written(before, snapshot.take(root, series.ignore))
        _require_content(series, step, written)
        algorithm = digest.preferred_algorithm()
        records = [_record(root, path, algorithm) for path in written]
        own = [record for record in records if not _belongs_to_another(record, step, known)]
        if not own:
            raise _nothing_written(series, step)
        for folder in sorted({os.path.dirname(os.path.join(root, record.path)) for record in own}):
            manifest.sync_directory(folder)
        first.upload(root, series.prefix, [os.path.join(root, record.path) for record in own])
        committed = manifest.write(root, manifest_of(series, step, own))
    except OSError as error:
        raise CheckpointError(
            f"committing step {step} in {root}: {error}. What the function wrote does not count as a checkpoint; make "
            "room or repair the disk, then save again."
        ) from error
    _warn_of_overwritten(root, committed, before, known)
    known.recent.append(committed)
    known.manifests[committed.name] = committed
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


def _record(root: str, path: str, algorithm: str) -> FileRecord:
    absolute, last = os.path.join(root, path), ""
    for _ in range(_READS):
        before = Stamp.of(os.stat(absolute))
        content = durability.where_to_read(absolute)
        found = digest.of_file(content, algorithm, length=before.size, sync=True)
        after = Stamp.of(os.stat(absolute))
        # A mount may set the time of a file a moment after it was closed; equal content twice is as good an answer.
        if after == before or (after.size == before.size and found == last):
            sample = samples.of_file(content, algorithm, before.size)
            return FileRecord(path, before.size, found, algorithm, sample)
        last = found
    raise CheckpointError(
        f"{absolute} is still being written after the save function returned: let the function wait for its writers. "
        f"If the file is a log, leave it out of checkpoints: save_checkpoint(..., ignore=[{os.path.basename(path)!r}])."
    )


def _belongs_to_another(record: FileRecord, step: int, known: memory.Memory) -> bool:
    """Whether the file is another step's own and as that step left it: its time changed, its content did not."""
    if names.is_named_after(record.path, step):
        return False
    others = (other for other in known.recent if names.is_named_after(record.path, other.step))
    return any(record in other.files for other in others)


def manifest_of(
    series: Series, step: int, records: Iterable[FileRecord], metrics: Mapping[str, float] | None = None
) -> Manifest:
    """The commit record of `records`, with all that is known of this process."""
    generation, task_id = os.environ.get("PERDURE_GENERATION", ""), os.environ.get("SKYPILOT_TASK_ID")
    world_size = os.environ.get("WORLD_SIZE", "")
    return Manifest(
        prefix=series.prefix,
        step=step,
        created_at=datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        files=tuple(records),
        metadata=json.loads(json.dumps(dict(series.metadata), default=str)),
        written_by={
            "task_id": task_id,
            "job_id": int(job["id"]) if (job := _JOB.search(task_id or "")) else None,
            "generation": int(generation) if generation.isdigit() else None,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "world_size": int(world_size) if world_size.isdigit() else None,
        },
        versions=_versions(),
        metrics=dict(metrics or {}),
    )


def _versions() -> dict[str, str]:
    """Of the interpreter, and of the frameworks that the program has imported itself."""
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in _FRAMEWORKS}
    return {
        "python": sys.version.partition(" ")[0],
        **{name: str(version) for name, version in loaded.items() if version is not None},
    }


def _warn_of_overwritten(root: str, committed: Manifest, before: Mapping[str, Stamp], known: memory.Memory) -> None:
    """Say once per file that saving it under one name for every step leaves no older step to fall back to."""
    overwritten = committed.paths & before.keys() - known.warned
    for older in known.recent:
        for record in older.files:
            if older.step == committed.step or record.path not in overwritten or record.path in known.warned:
                continue
            known.warned.add(record.path)
            if checkpoints.file_fault(root, record, older.step):
                logger.warning(
                    "saving step %d overwrote %s, which is part of step %d: only the newest step can be loaded. Put "
                    "the step into the file's name, or leave the file out: save_checkpoint(..., ignore=[%r]).",
                    *(committed.step, record.path, older.step, os.path.basename(record.path)),
                )


def after(series: Series, committed: Manifest, known: memory.Memory) -> None:
    """What follows a commit: older manifests of the step go, the agent is told, surplus checkpoints are removed. Raises
    nothing: the step is saved."""
    root = series.root
    journal.note(committed.step, journal.COMMITTED, manifest.path_of(root, committed.name))
    known.unseen.append(committed)
    try:
        _drop_unusable(root, committed)
        for durable in _seen_durable(root, known):
            _drop_superseded(series, durable, known)
    except (OSError, CheckpointUnavailable) as error:
        logger.warning("removing what step %d replaces from %s: %s", committed.step, root, error)
    if series.keep is not None:
        retention.apply(root, series.prefix, just_saved=committed.step, keep=series.keep, memory=known)


def _drop_unusable(root: str, committed: Manifest) -> None:
    """Remove what must not condemn the step that was saved anew: manifests of it that can not be believed. Nor does
    anybody need to know any more that a first save began."""
    for entry in manifest.entries(root):
        if (entry.prefix, entry.step) == (committed.prefix, committed.step) and entry.name != committed.name:
            try:
                manifest.read(root, entry.name)
            except manifest.ManifestDamaged:
                manifest.delete(root, entry.name)
    for name in manifest.announced(root):
        manifest.delete(root, name)


def _drop_superseded(series: Series, durable: Manifest, known: memory.Memory) -> None:
    """Remove other saves of the same step, now that the bucket has the one that replaces them."""
    root = series.root
    for entry in manifest.entries(root):
        if (entry.prefix, entry.step) != (durable.prefix, durable.step) or entry.name == durable.name:
            continue
        try:
            other = manifest.read(root, entry.name)
        except manifest.ManifestDamaged:
            continue
        if entry.name in known.damaged or _replaces(series, durable, other):
            manifest.delete(root, entry.name)
            known.manifests.pop(entry.name, None)
            if series.saves_all:
                retention.remove_files(Checkpoint(root, other.prefix, other.step, (other,)), known)


def _replaces(series: Series, new: Manifest, other: Manifest) -> bool:
    """Whether nothing of `other` is wanted any more. Of two processes that save the same, only one answers yes, and of
    two attempts the later one: a machine that was given up may still be saving."""
    if series.saves_all:
        return other.order < new.order
    is_covered = other.paths <= new.paths
    return is_covered and (other.order < new.order or not set(other.files) <= set(new.files))


def _seen_durable(root: str, known: memory.Memory) -> list[Manifest]:
    """Of this process's saves, those that have newly reached the bucket; the agent is told. Off the mounts a save is
    durable at once, and the agent knows that."""
    found = []
    on_mount = durability.mount_of(root) is not None
    for one in list(known.unseen):
        paths = [os.path.join(root, path) for path in one.paths] + [manifest.path_of(root, one.name)]
        if durability.is_durable(paths):
            known.unseen.remove(one)
            found.append(one)
            if on_mount:
                known.durable.add(one.name)
                journal.note(one.step, journal.DURABLE, manifest.path_of(root, one.name))
    return found
