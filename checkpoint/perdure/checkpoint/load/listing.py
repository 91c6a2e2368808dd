"""What is saved in a directory, for programs and people that want to inspect it before they load."""

from __future__ import annotations

import os
from dataclasses import dataclass

from perdure.checkpoint.durability import mounts, status
from perdure.checkpoint.format import file_changes, sampling
from perdure.checkpoint.format.save_dir import root_of
from perdure.checkpoint.load import damage_marks
from perdure.checkpoint.load.saved_step import Checkpoint, newest_first
from perdure.checkpoint.load.verify import find_damage, verify_and_mark


@dataclass(frozen=True)
class StepInfo:
    """One saved step."""

    step: int
    prefix: str
    files: tuple[str, ...]  # paths relative to the save_dir
    size: int  # bytes, of all files
    created_at: str  # ISO 8601, UTC
    state: str  # "committed", "durable" or "damaged"
    durable: bool | None  # None: it is not known whether the bucket has it
    reason: str = ""  # why it is damaged


def steps(save_dir: str | os.PathLike[str], *, prefix: str | None = None, verify: bool | str = False) -> list[StepInfo]:
    """Every saved step under `save_dir`, newest first; of every prefix unless one is given.

    `verify`: True or "full" reads every file and compares digests; "sampled" compares a sample of each file; False or
    "size" compares only sizes.

    Raises CheckpointUnavailable when the directory cannot be read or its mount is gone.
    """
    root = root_of(save_dir)
    mounts.require_mounted(root)
    mode = sampling.check_mode(verify) if isinstance(verify, str) else sampling.FULL if verify else sampling.SIZE
    return [_info(checkpoint, mode) for checkpoint in newest_first(root, prefix)]


def latest(save_dir: str | os.PathLike[str], *, prefix: str = "checkpoint") -> int | None:
    """The newest committed step whose files are all there in full size; None if there is none.

    Raises CheckpointUnavailable when the directory cannot be read or its mount is gone.
    """
    root = root_of(save_dir)
    mounts.require_mounted(root)
    whole = (c.step for c in newest_first(root, prefix) if find_damage(c, sampling.SIZE) is None)
    return next(whole, None)


def is_durable(root: str, prefix: str, step: int) -> bool | None:
    """Whether a step is where it outlives this machine; False if there is no such step, None if it cannot be known.

    Raises CheckpointUnavailable when the directory cannot be read.
    """
    saved = next((one for one in newest_first(root, prefix) if one.step == step), None)
    return False if saved is None else status.is_durable(saved.file_versions)


def unlisted_files(save_dir: str | os.PathLike[str]) -> list[str]:
    """Files under `save_dir` that no manifest lists: of other code, or of unfinished saves."""
    root = root_of(save_dir)
    listed = {path for checkpoint in newest_first(root) for path in checkpoint.files}
    return sorted(file_changes.scan(root).keys() - listed)


def _info(checkpoint: Checkpoint, verify: str) -> StepInfo:
    if verify == sampling.SIZE:
        damage = damage_marks.current_mark(checkpoint) or find_damage(checkpoint, sampling.SIZE)
    else:
        damage = verify_and_mark(checkpoint, trust_marks=False, verify=verify)
    durable = status.is_durable(checkpoint.file_versions) if damage is None else False
    on_mount = mounts.find_mount(checkpoint.root) is not None
    state = "damaged" if damage else "durable" if durable and on_mount else "committed"
    return StepInfo(
        step=checkpoint.step,
        prefix=checkpoint.prefix,
        files=tuple(sorted(checkpoint.files)),
        size=sum(record.size for record in checkpoint.files.values()),
        created_at=checkpoint.manifests[-1].created_at if checkpoint.manifests else "",
        state=state,
        durable=durable,
        reason=damage or "",
    )
