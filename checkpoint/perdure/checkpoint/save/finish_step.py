"""The end of every save: its commit record is built, and once that is written, what it replaces goes.

Every save ends here, whoever wrote its files: `Checkpointer` one part per process, `Folders` another library,
`save.function_save` the user's function. Each builds the commit record with `build_manifest` and writes it with
`SaveDirectory.commit`, which calls `format.manifest.write`: from that moment on the step is committed. Then it calls
`finish`, which reports the commit through `durability.journal`, and removes what is not needed any more.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from perdure.checkpoint.durability import journal
from perdure.checkpoint.durability.file_version import have_replaced
from perdure.checkpoint.errors import CheckpointUnavailable
from perdure.checkpoint.format import manifest
from perdure.checkpoint.format.manifest import FileRecord, Manifest
from perdure.checkpoint.load.saved_step import Checkpoint
from perdure.checkpoint.save.retention import surplus_removal
from perdure.checkpoint.save.retention.keep_rule import Keep
from perdure.checkpoint.save.save_directory import SaveDirectory

logger = logging.getLogger("perdure.checkpoint")

_JOB = re.compile(r"_(?P<id>\d+)-\d+$")  # the end of a task ID: the job's number and the task's index in it
_FRAMEWORKS = ("torch", "jax", "tensorflow", "numpy", "safetensors")


@dataclass(frozen=True)
class Series:
    """Checkpoints of one prefix in one directory."""

    root: str
    prefix: str
    keep: Keep | None  # None: all
    metadata: Mapping[str, Any] = field(default_factory=dict)
    ignore: Sequence[str] = ()  # patterns of files that are no part of a checkpoint
    function: str = ""  # whose steps retention counts; empty: those of every function
    protected: set[int] = field(default_factory=set)  # steps that stay, whatever `keep` says
    saves_whole_step: bool = False  # one save holds all of its step; otherwise several functions may save parts of it

    def __post_init__(self) -> None:
        """Raises TypeError or ValueError for metadata that JSON cannot hold: a save in the background would fail."""
        json.dumps(dict(self.metadata), default=str)


def build_manifest(
    series: Series, step: int, records: Iterable[FileRecord], metrics: Mapping[str, float] | None = None
) -> Manifest:
    """The commit record of `records`, with what is known of this process."""
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
            "function": series.function or None,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "world_size": int(world_size) if world_size.isdigit() else None,
        },
        versions=_versions(),
        metrics=dict(metrics or {}),
    )


def _versions() -> dict[str, str]:
    """Of the interpreter, and of the frameworks that the program has imported."""
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in _FRAMEWORKS}
    return {
        "python": sys.version.partition(" ")[0],
        **{name: str(version) for name, version in loaded.items() if version is not None},
    }


def finish(series: Series, committed: Manifest, directory: SaveDirectory) -> None:
    """Report the commit to the agent, remove other manifests of the step, then surplus checkpoints.

    Raises nothing: the step is saved. Call it with the lock of `directory.cache` held.
    """
    root = series.root
    manifest_path = manifest.path_of(root, committed.name)
    files = {record.path: record.version for record in sorted(committed.files, key=lambda record: record.path)}
    journal.record(committed.step, journal.COMMITTED, manifest_path, directory=root, files=files)
    _forget_replaced(directory, committed)
    directory.cache.pending_upload.append(committed)
    try:
        _warn_of_later_steps(committed, directory)
        _delete_unreadable(directory, committed)
        directory.delete_started(committed.prefix)
        for durable in _pop_durable(directory):
            _delete_superseded(series, durable, directory)
    except (OSError, CheckpointUnavailable) as error:
        logger.warning("removing what step %d replaces from %s: %s", committed.step, root, error)
    if series.keep is not None:
        surplus_removal.remove_surplus(
            directory,
            series.prefix,
            just_saved=committed.step,
            keep=series.keep,
            function=series.function,
            protected=series.protected,
        )


def _warn_of_later_steps(committed: Manifest, directory: SaveDirectory) -> None:
    """Warn if a program that has loaded nothing begins to save steps that another one has passed already."""
    cache = directory.cache
    if cache.was_searched:
        return
    cache.was_searched = True  # once is enough
    newest = next(directory.checkpoints(committed.prefix), None)
    if newest is not None and newest.step > committed.step:
        logger.warning(
            "step %d was saved in %s, where an earlier run has saved step %d (prefix %r): loads return that one, and "
            "the steps of this run are removed first. Load before training, or give this run a directory or a prefix "
            "of its own.",
            *(committed.step, directory.root, newest.step, committed.prefix),
        )


def _delete_unreadable(directory: SaveDirectory, committed: Manifest) -> None:
    """Remove damaged manifests of the step that was saved anew: because of them a load would refuse the step."""
    for entry in directory.entries():
        if (entry.prefix, entry.step) == (committed.prefix, committed.step) and entry.name != committed.name:
            try:
                manifest.load(directory.root, entry.name, directory.mounts)
            except manifest.ManifestDamaged:
                directory.delete(entry.name)


def _delete_superseded(series: Series, durable: Manifest, directory: SaveDirectory) -> None:
    """Remove other saves of the same step, now that the bucket has the one that replaces them."""
    for entry in directory.entries():
        if (entry.prefix, entry.step) != (durable.prefix, durable.step) or entry.name == durable.name:
            continue
        try:
            other = manifest.load(directory.root, entry.name, directory.mounts)
        except manifest.ManifestDamaged:
            continue
        if entry.name in directory.cache.damaged or _replaces(series, durable, other):
            directory.delete(entry.name)
            if series.saves_whole_step:
                surplus_removal.remove_files(directory, Checkpoint(directory.root, other.prefix, other.step, (other,)))


def _replaces(series: Series, new: Manifest, other: Manifest) -> bool:
    """Whether nothing of `other` is needed any more.

    If two processes save the same step, this is true for at most one of them. If these belong to two attempts, it is
    true for the later one, because a machine that was given up may still be saving.
    """
    if series.saves_whole_step:
        return other.order < new.order
    is_covered = other.paths <= new.paths
    return is_covered and (other.order < new.order or not set(other.files) <= set(new.files))


def _forget_replaced(directory: SaveDirectory, committed: Manifest) -> None:
    """Forget the uploads of saves that were removed, or whose files `committed` has overwritten."""
    root, cache = directory.root, directory.cache
    new = committed.file_versions(root)
    for one in list(cache.pending_upload):
        if one.name not in cache.manifests or have_replaced(new, one.file_versions(root)):
            cache.pending_upload.remove(one)


def _pop_durable(directory: SaveDirectory) -> list[Manifest]:
    """Of this process's saves, those that have reached the bucket since the last call. Off the mounts a save is durable
    at once. The agent watches the uploads itself."""
    cache = directory.cache
    durable = []
    for one in list(cache.pending_upload):
        if directory.is_durable(one.file_versions(directory.root)):
            cache.pending_upload.remove(one)
            durable.append(one)
            if directory.is_on_mount:
                cache.durable.add(one.name)
    return durable
