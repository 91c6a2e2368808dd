"""What is saved in a directory, for programs and people that want to look before they load."""

from __future__ import annotations

import os
from dataclasses import dataclass

from perdure.checkpoint import durability, marks, samples, snapshot
from perdure.checkpoint.checkpoints import Checkpoint, newest_first
from perdure.checkpoint.save_dir import root_of


@dataclass(frozen=True)
class StepInfo:
    """One saved step. Sizes in bytes. `state`: committed, durable, or damaged, with the reason in `why`.

    `durable` is None where it can not be told whether the bucket has it.
    """

    step: int
    prefix: str
    files: tuple[str, ...]
    size: int
    created_at: str
    state: str
    durable: bool | None
    why: str = ""


def steps(save_dir: str | os.PathLike[str], *, prefix: str | None = None, verify: bool | str = False) -> list[StepInfo]:
    """Every saved step under `save_dir`, newest first; of every prefix unless one is given.

    `verify` reads every file and compares digests, or as closely as it says ("full", "sampled", "size"); without it
    only presence and sizes are looked at.

    Raises CheckpointUnavailable when the directory can not be read or its mount is gone.
    """
    root = root_of(save_dir)
    durability.require_mounted(root)
    closely = samples.checked(verify) if isinstance(verify, str) else samples.FULL if verify else samples.SIZE
    return [_info(checkpoint, closely) for checkpoint in newest_first(root, prefix)]


def latest(save_dir: str | os.PathLike[str], *, prefix: str = "checkpoint") -> int | None:
    """The newest committed step whose files are there in full size; None when there is none.

    Raises CheckpointUnavailable when the directory can not be read or its mount is gone.
    """
    root = root_of(save_dir)
    durability.require_mounted(root)
    whole = (c.step for c in newest_first(root, prefix) if c.fault(samples.SIZE) is None)
    return next(whole, None)


def strays(save_dir: str | os.PathLike[str]) -> list[str]:
    """Files under `save_dir` that no manifest lists: of other code, or of saves that never finished."""
    root = root_of(save_dir)
    listed = {path for checkpoint in newest_first(root) for path in checkpoint.files}
    return sorted(snapshot.take(root).keys() - listed)


def _info(checkpoint: Checkpoint, verify: str) -> StepInfo:
    if verify == samples.SIZE:
        fault = marks.standing(checkpoint) or checkpoint.fault(samples.SIZE)
    else:
        fault = marks.fault(checkpoint, believe=False, verify=verify)
    durable = durability.is_durable(checkpoint.all_paths) if fault is None else False
    on_mount = durability.mount_of(checkpoint.root) is not None
    state = "damaged" if fault else "durable" if durable and on_mount else "committed"
    return StepInfo(
        step=checkpoint.step,
        prefix=checkpoint.prefix,
        files=tuple(sorted(checkpoint.files)),
        size=sum(record.size for record in checkpoint.files.values()),
        created_at=checkpoint.manifests[-1].created_at if checkpoint.manifests else "",
        state=state,
        durable=durable,
        why=fault or "",
    )
