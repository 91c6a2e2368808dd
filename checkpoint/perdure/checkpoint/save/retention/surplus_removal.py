"""Finds and deletes the surplus: the checkpoints that the rule in `keep_rule` does not select.

It never blocks training, and never fails a save.

Other code deletes other things. `finish_step.finish` removes other manifests of the step just saved
(`_delete_superseded`, `_delete_unreadable`). `leftovers` removes parts that were never committed.
`Folders` and the Lightning plugin remove the manifests of files that are written again or were removed.

The rule is applied to the checkpoints that are whole and durable. Three kinds are kept: those that the rule selects,
every checkpoint that is newer than the `keep.last`-th newest durable one, and the one just saved. A checkpoint whose
upload is still under way does not count, so the bucket never holds fewer than the rule keeps, or all that ever reached
it. A checkpoint that cannot be removed yet is removed after a later save.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace

from perdure.checkpoint.errors import CheckpointUnavailable
from perdure.checkpoint.format import part_names, sampling, step_names
from perdure.checkpoint.load.directory_cache import DirectoryCache
from perdure.checkpoint.load.saved_step import Checkpoint
from perdure.checkpoint.load.verify import find_damage
from perdure.checkpoint.save.retention.keep_rule import Keep, RetentionCandidate, epoch_s, steps_to_keep
from perdure.checkpoint.save.save_directory import SaveDirectory

logger = logging.getLogger("perdure.checkpoint")


def remove_surplus(
    directory: SaveDirectory,
    prefix: str,
    *,
    just_saved: int | None,
    keep: Keep,
    function: str = "",
    protected: Set[int] = frozenset(),
) -> list[int]:
    """Remove the surplus checkpoints; returns their steps. Problems are logged as warnings.

    Manifests go first, so that a crash leaves files without a manifest and never the reverse. A file goes only if a
    removed manifest lists it, it is named after that manifest's step by a pattern that another step has too, and no
    remaining manifest (of any prefix) lists it.
    """
    stays = {*protected, *([] if just_saved is None else [just_saved])}
    try:
        if not find_surplus(directory, prefix, stays=stays, keep=keep, function=function):
            return []
        directory.forget_listing()
        surplus = find_surplus(directory, prefix, stays=stays, keep=keep, function=function)
        _record_templates(directory, prefix)
        removed = [checkpoint for checkpoint in surplus if _uncommit(directory, checkpoint)]
        directory.sync()
        directory.forget_listing()
        shared = _listed_paths(directory)
    except (OSError, CheckpointUnavailable) as error:
        logger.warning("removing old checkpoints from %s: %s; the next save tries again", directory.root, error)
        return []
    for checkpoint in removed:
        _remove_files(checkpoint, shared, directory.cache)
    return [checkpoint.step for checkpoint in removed]


def remove_files(directory: SaveDirectory, checkpoint: Checkpoint) -> None:
    """Remove the files of a checkpoint whose manifests are gone, by the rule of `remove_surplus`.

    Raises CheckpointUnavailable.
    """
    directory.forget_listing()
    _remove_files(checkpoint, _listed_paths(directory), directory.cache)


def functions_of(directory: SaveDirectory, prefix: str) -> list[str]:
    """The functions that have saved steps of `prefix`; `[""]` if none is known. Raises CheckpointUnavailable."""
    return sorted({one.function for each in directory.checkpoints(prefix) for one in each.manifests}) or [""]


def find_surplus(
    directory: SaveDirectory, prefix: str, *, keep: Keep, stays: Set[int] = frozenset(), function: str = ""
) -> Sequence[Checkpoint]:
    """The checkpoints of `prefix` that the rule does not keep, newest first, but for the steps in `stays`.

    `function`: only what this function saved counts, and is returned; empty: all of it. Checkpoints with damaged
    manifests are never among them: they may be the remains of something good. Raises CheckpointUnavailable.
    """
    checkpoints = list(_saved_by(function, directory.checkpoints(prefix)))
    if len(checkpoints) <= keep.last:
        return ()
    safe: list[Checkpoint] = []
    older: list[Checkpoint] = []
    for checkpoint in checkpoints:
        has_enough = len(safe) >= keep.last
        if has_enough:
            older.append(checkpoint)
        # Whether an older one is safe matters only to rules that keep older ones.
        if (not has_enough or keep.keeps_older) and _is_safe(directory, checkpoint):
            safe.append(checkpoint)
    if len(safe) < keep.last:
        return ()
    kept = steps_to_keep(keep, [_retention_candidate(checkpoint) for checkpoint in safe]) | stays
    return [checkpoint for checkpoint in older if checkpoint.step not in kept and not checkpoint.damage]


def _saved_by(function: str, checkpoints: Iterable[Checkpoint]) -> Iterator[Checkpoint]:
    """Of each checkpoint the part that `function` saved, and what was saved when functions were not recorded."""
    for checkpoint in checkpoints:
        mine = tuple(one for one in checkpoint.manifests if not function or one.function in ("", function))
        if mine or checkpoint.damage:
            yield replace(checkpoint, manifests=mine)


def _record_templates(directory: SaveDirectory, prefix: str) -> None:
    for checkpoint in directory.checkpoints(prefix):
        for path in checkpoint.files:
            directory.cache.record_templates(checkpoint.step, step_names.templates(path, checkpoint.step))


def _retention_candidate(checkpoint: Checkpoint) -> RetentionCandidate:
    newest = checkpoint.manifests[-1]
    return RetentionCandidate(checkpoint.step, epoch_s(newest.created_at), newest.metrics)


def _is_safe(directory: SaveDirectory, checkpoint: Checkpoint) -> bool:
    """Whether it can be relied on: not refused by a load, all files present, and durable."""
    cache = directory.cache
    if cache.is_damaged(checkpoint) or find_damage(checkpoint, sampling.SIZE):
        return False
    names = {one.name for one in checkpoint.manifests}
    if names <= cache.durable:
        return True
    durable = directory.is_durable(checkpoint.file_versions)
    if durable:
        cache.durable |= names
    elif durable is None and not cache.warned_of_unknown_durability:
        cache.warned_of_unknown_durability = True
        logger.warning(
            "%s: it is not known whether checkpoints have reached the bucket (rclone's cache cannot be read), so none "
            "is removed",
            checkpoint.root,
        )
    return bool(durable)


def _listed_paths(directory: SaveDirectory) -> set[str]:
    return {path for checkpoint in directory.checkpoints() for path in checkpoint.files}


def _uncommit(directory: SaveDirectory, checkpoint: Checkpoint) -> bool:
    """Remove its manifests; returns whether that succeeded."""
    try:
        for one in checkpoint.manifests:
            directory.delete(one.name)
    except OSError as error:
        logger.warning("removing the checkpoint of step %d: %s; it stays", checkpoint.step, error)
        return False
    return True


def _remove_files(checkpoint: Checkpoint, shared: set[str], cache: DirectoryCache) -> None:
    folders = set()
    for path in checkpoint.files:
        if path in shared or not _belongs_to_step(path, checkpoint, cache):
            continue
        try:
            os.unlink(os.path.join(checkpoint.root, path))
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning("removing %s of step %d: %s; it stays on the disk", path, checkpoint.step, error)
        folders.add(os.path.dirname(path))
    for folder in sorted(folders, key=len, reverse=True):
        _remove_empty(checkpoint.root, folder)
    logger.debug("removed the checkpoint of step %d from %s", checkpoint.step, checkpoint.root)


def _belongs_to_step(path: str, checkpoint: Checkpoint, cache: DirectoryCache) -> bool:
    """Whether the file is of this step alone: its name has a pattern that files of other steps have as well."""
    if part_names.parse_part(path, checkpoint.prefix) is not None:
        return True
    if part_names.is_referred(path):
        return not part_names.is_shared(path)  # a step that is being saved may refer to it: `leftovers` removes it
    own = {checkpoint.step}
    return any(cache.templates.get(one, own) != own for one in step_names.templates(path, checkpoint.step))


def _remove_empty(root: str, folder: str) -> None:
    """Remove `folder` and each parent that becomes empty; a folder that holds anything stays."""
    with contextlib.suppress(OSError):
        while folder:
            os.rmdir(os.path.join(root, folder))
            folder = os.path.dirname(folder)
