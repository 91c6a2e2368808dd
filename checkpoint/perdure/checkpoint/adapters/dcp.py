"""torch.distributed.checkpoint: sharded states, committed and verified, that load on any number of processes.

For example:

    checkpoints = DcpCheckpoints("/checkpoints")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    step = checkpoints.load(state)          # fills the tensors in place; None: nothing saved yet
    checkpoints.save(step, state)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed.checkpoint as dcp

from perdure.checkpoint.folders import Folder, Folders
from perdure.checkpoint.format.save_dir import SaveDir, root_of
from perdure.checkpoint.ranks.group import Group, detect_group
from perdure.checkpoint.save.retention.keep import Keep


class DcpCheckpoints:
    """Checkpoints in DCP's format, one folder each. Every process calls the same methods.

    `last_result`: the folder that the last `load` used, and what it skipped.
    """

    def __init__(
        self, save_dir: SaveDir, *, keep: int | Keep | None = 5, prefix: str = "dcp", group: Group | None = None
    ) -> None:
        self._folders = Folders(
            save_dir, keep=keep, prefix=prefix, group=detect_group(root_of(save_dir)) if group is None else group
        )
        self.last_result: Folder | None = None

    def save(self, step: int, state: dict[str, Any], *, metrics: Mapping[str, float] | None = None) -> None:
        """Save `state` as the checkpoint of `step`. Raises what DCP raises, and CheckpointError."""
        with self._folders.saving(step, metrics=metrics) as path:
            dcp.save(state, checkpoint_id=path)

    def load(self, state: dict[str, Any]) -> int | None:
        """Fill `state` in place from the newest whole checkpoint; returns its step, or None if nothing was saved yet.

        Any number of processes may have saved it. Raises NoUsableCheckpoint and CheckpointUnavailable.
        """
        self.last_result = self._folders.newest()
        if self.last_result is None:
            return None
        dcp.load(state, checkpoint_id=self.last_result.path)
        return self.last_result.step
