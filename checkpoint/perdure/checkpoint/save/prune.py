"""Selects the checkpoints that may be deleted, and deletes them: those that the rule in `keep` does not select.

It never blocks training, and never fails a save.

Other code deletes other things. `transaction.finish` removes other manifests of the step just saved
(`_delete_superseded`, `_delete_unreadable`). `shards.remove_leftovers` removes unfinished parts of dead processes.
`Folders` and the Lightning plugin remove the manifests of files that are written again or were removed.

Kept are the checkpoints that the rule selects among the whole and durable ones, every checkpoint that is newer
than the oldest of the `keep.last` newest of those, and always the one just saved. A checkpoint whose upload is still
under way does not count, so the bucket never holds fewer than the rule keeps (or all that ever reached it). A
checkpoint that cannot be removed yet is removed after a later save.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence

from perdure.checkpoint.errors import CheckpointUnavailable
from perdure.checkpoint.format import sampling, step_names
from perdure.checkpoint.load.checkpoint import Checkpoint
from perdure.checkpoint.load.verify import find_damage
from perdure.checkpoint.save.keep import Keep, RetentionCandidate, epoch_s, steps_to_keep
from perdure.checkpoint.save.save_directory import SaveDirectory

logger = logging.getLogger("perdure.checkpoint")


def remove_surplus(directory: SaveDirectory, prefix: str, *, just_saved: int | None, keep: Keep) -> list[int]:
    """Remove the surplus checkpoints; returns their steps. Problems are logged as warnings.

    Manifests go first, so that a crash leaves files without a manifest and never the reverse. A file goes only if a
    removed manifest lists it, it is named after that manifest's step, and no remaining manifest (of any prefix) lists
    it.
    """
    try:
        if not find_surplus(directory, prefix, just_saved=just_saved, keep=keep):
            return []
        directory.forget_listing()
        surplus = find_surplus(directory, prefix, just_saved=just_saved, keep=keep)
        removed = [checkpoint for checkpoint in surplus if _uncommit(directory, checkpoint)]
        directory.sync()
        directory.forget_listing()
        shared = _listed_paths(directory)
    except (OSError, CheckpointUnavailable) as error:
        logger.warning("removing old checkpoints from %s: %s; the next save tries again", directory.root, error)
        return []
    for checkpoint in removed:
        _remove_files(checkpoint, shared)
    return [checkpoint.step for checkpoint in removed]


def remove_files(directory: SaveDirectory, checkpoint: Checkpoint) -> None:
    """Remove the files of a checkpoint whose manifests are gone, by the rule of `remove_surplus`.

    Raises CheckpointUnavailable.
    """
    directory.forget_listing()
    _remove_files(checkpoint, _listed_paths(directory))


def find_surplus(directory: SaveDirectory, prefix: str, *, just_saved: int | None, keep: Keep) -> Sequence[Checkpoint]:
    """The checkpoints of `prefix` that the rule does not keep, newest first. Checkpoints with damaged manifests are
    never among them: they may be the remains of something good. Raises CheckpointUnavailable."""
    checkpoints = list(directory.checkpoints(prefix))
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
    kept = steps_to_keep(keep, [_retention_candidate(checkpoint) for checkpoint in safe]) | {just_saved}
    return [checkpoint for checkpoint in older if checkpoint.step not in kept and not checkpoint.damage]


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


def _remove_files(checkpoint: Checkpoint, shared: set[str]) -> None:
    folders = set()
    for path in checkpoint.files:
        if path in shared or not step_names.is_named_after(path, checkpoint.step):
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


def _remove_empty(root: str, folder: str) -> None:
    """Remove `folder` and each parent that becomes empty; a folder that holds anything stays."""
    with contextlib.suppress(OSError):
        while folder:
            os.rmdir(os.path.join(root, folder))
            folder = os.path.dirname(folder)
