"""Accelerate: the folders that `save_state` writes are committed and verified.

    batches = Resumable(loader)             # after accelerator.prepare
    accelerator.register_for_checkpointing(batches)
    checkpoints = AccelerateCheckpoints(accelerator, "/checkpoints", keep=3)
    step = checkpoints.load() or 0
    for batch in batches:
        ...
        checkpoints.save(step)

`accelerator.skip_first_batches` resumes with the right batches, but draws random numbers that the uninterrupted run
does not draw; `perdure.checkpoint.Resumable` does not.

Leave `total_limit` and `automatic_checkpoint_naming` of the ProjectConfiguration unset: with them Accelerate removes
the oldest folder before the new one is whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.checkpoint.folders import Folder, Folders
from perdure.checkpoint.format.save_dir import SaveDir, root_of
from perdure.checkpoint.ranks.group import detect_group
from perdure.checkpoint.save.retention.keep_rule import Keep


class AccelerateCheckpoints:
    """Checkpoints of one Accelerator: models, optimizers, schedulers, registered objects, and random numbers.

    Every process calls the same methods. `last_result`: the folder that the last `load` used, and what it skipped.
    """

    def __init__(
        self, accelerator: Any, save_dir: SaveDir, *, keep: int | Keep | None = 5, prefix: str = "accelerate"
    ) -> None:
        self._accelerator = accelerator
        self._folders = Folders(save_dir, keep=keep, prefix=prefix, group=detect_group(root_of(save_dir)))
        self.last_result: Folder | None = None

    def save(self, step: int, *, metrics: Mapping[str, float] | None = None) -> None:
        """Save the state as the checkpoint of `step`. Raises what Accelerate raises, and CheckpointError."""
        with self._folders.saving(step, metrics=metrics) as path:
            self._accelerator.save_state(path)

    def load(self) -> int | None:
        """Load the newest whole checkpoint; returns its step, or None if nothing was saved yet.

        Raises NoUsableCheckpoint and CheckpointUnavailable.
        """
        self.last_result = self._folders.newest()
        if self.last_result is None:
            return None
        self._accelerator.load_state(self.last_result.path)
        return self.last_result.step
