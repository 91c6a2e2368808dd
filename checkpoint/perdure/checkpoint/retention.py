"""Which checkpoints go once a newer one is safe, and their removal. Never blocks training and never fails a save.

Kept are those that the rule (`keep`) asks for among the whole and durable ones, everything newer than the last of the
newest ones that it asks for, and always the one just saved. A checkpoint whose upload is still under way does not
count, so the bucket never holds fewer than asked for (or all that ever reached it); what can not go yet goes after a
later save.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence

from perdure.checkpoint import checkpoints, durability, manifest, names, samples
from perdure.checkpoint.checkpoints import Checkpoint
from perdure.checkpoint.errors import CheckpointUnavailable
from perdure.checkpoint.keep import Keep, Kept, epoch_s, kept_steps
from perdure.checkpoint.memory import Memory
from perdure.checkpoint.snapshot import OWN_DIR

logger = logging.getLogger("perdure.checkpoint")


def apply(root: str, prefix: str, *, just_saved: int | None, keep: Keep, memory: Memory) -> list[int]:
    """Remove what is surplus: manifests first, so that a crash leaves files without a manifest and never the reverse.

    Of the files only those go that a removed manifest lists, that are named after its step, and that no manifest left
    (of any prefix) lists. Problems are logged as warnings. Returns the steps that were removed.
    """
    try:
        surplus = find_surplus(root, prefix, just_saved=just_saved, keep=keep, memory=memory)
        if not surplus:
            return []
        removed = [checkpoint for checkpoint in surplus if _uncommit(checkpoint, memory)]
        manifest.sync_directory(os.path.join(root, OWN_DIR))
        shared = _listed(root, memory)
    except (OSError, CheckpointUnavailable) as error:
        logger.warning("removing old checkpoints from %s: %s; the next save tries again", root, error)
        return []
    for checkpoint in removed:
        _remove_files(checkpoint, shared)
    return [checkpoint.step for checkpoint in removed]


def remove_files(checkpoint: Checkpoint, memory: Memory) -> None:
    """Remove the files of a checkpoint whose manifests are gone, as `apply` does. Raises CheckpointUnavailable."""
    _remove_files(checkpoint, _listed(checkpoint.root, memory))


def find_surplus(root: str, prefix: str, *, just_saved: int | None, keep: Keep, memory: Memory) -> Sequence[Checkpoint]:
    """The checkpoints of `prefix` that nothing asks for, newest first. Damaged manifests are no surplus: they may be
    what is left of something good."""
    found = list(checkpoints.newest_first(root, prefix, cache=memory.manifests))
    if len(found) <= keep.last:
        return ()
    safe: list[Checkpoint] = []
    older: list[Checkpoint] = []
    for checkpoint in found:
        enough = len(safe) >= keep.last
        if enough:
            older.append(checkpoint)
        # Whether an older one counts matters only to rules that keep older ones.
        if (not enough or keep.keeps_older) and _is_safe(checkpoint, memory):
            safe.append(checkpoint)
    if len(safe) < keep.last:
        return ()
    stay = kept_steps(keep, [_known(checkpoint) for checkpoint in safe]) | {just_saved}
    return [old for old in older if old.step not in stay and not old.damage]


def _known(checkpoint: Checkpoint) -> Kept:
    newest = checkpoint.manifests[-1]
    return Kept(checkpoint.step, epoch_s(newest.created_at), newest.metrics)


def _is_safe(checkpoint: Checkpoint, memory: Memory) -> bool:
    """Whether it can be relied on: not refused by a load, all files there, and durable."""
    if memory.is_damaged(checkpoint) or checkpoint.fault(samples.SIZE):
        return False
    own = {one.name for one in checkpoint.manifests}
    if own <= memory.durable:
        return True
    answer = durability.is_durable(checkpoint.all_paths)
    if answer:
        memory.durable |= own
    elif answer is None and not memory.warned_of_unknown_durability:
        memory.warned_of_unknown_durability = True
        logger.warning(
            "%s: can not tell whether checkpoints have reached the bucket (rclone's cache can not be read), so none is "
            "removed",
            checkpoint.root,
        )
    return bool(answer)


def _listed(root: str, memory: Memory) -> set[str]:
    return {path for kept in checkpoints.newest_first(root, cache=memory.manifests) for path in kept.files}


def _uncommit(checkpoint: Checkpoint, memory: Memory) -> bool:
    try:
        for one in checkpoint.manifests:
            manifest.delete(checkpoint.root, one.name)
            memory.manifests.pop(one.name, None)
    except OSError as error:
        logger.warning("removing the checkpoint of step %d: %s; it stays", checkpoint.step, error)
        return False
    return True


def _remove_files(checkpoint: Checkpoint, shared: set[str]) -> None:
    folders = set()
    for path in checkpoint.files:
        if path in shared or not names.is_named_after(path, checkpoint.step):
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
    """Remove `folder`, and what held only it; a folder that holds anything stays."""
    with contextlib.suppress(OSError):
        while folder:
            os.rmdir(os.path.join(root, folder))
            folder = os.path.dirname(folder)
