"""DeepSpeed: the folders that `save_checkpoint` writes are committed and verified.

    checkpoints = DeepSpeedCheckpoints(engine, "/checkpoints", keep=3)
    state = checkpoints.load()              # the client state that was saved; None: nothing saved yet
    checkpoints.save(step, {"step": step})

DeepSpeed's file `latest` is not written: it may name a folder that is not whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from perdure.checkpoint.errors import CheckpointError
from perdure.checkpoint.folders import Folder, Folders
from perdure.checkpoint.format.save_dir import SaveDir, root_of
from perdure.checkpoint.ranks.group import detect_group
from perdure.checkpoint.save.retention.keep_rule import Keep


class DeepSpeedCheckpoints:
    """Checkpoints of one engine. Every process calls the same methods.

    `last_result`: the folder that the last `load` used, and what it skipped.
    """

    def __init__(
        self, engine: Any, save_dir: SaveDir, *, keep: int | Keep | None = 5, prefix: str = "deepspeed"
    ) -> None:
        self._engine = engine
        self._folders = Folders(save_dir, keep=keep, prefix=prefix, group=detect_group(root_of(save_dir)))
        self.last_result: Folder | None = None

    def save(
        self, step: int, client_state: Mapping[str, Any] | None = None, *, metrics: Mapping[str, float] | None = None
    ) -> None:
        """Save the engine, and `client_state` with it, as the checkpoint of `step`.

        Raises what DeepSpeed raises, and CheckpointError.
        """
        with self._folders.saving(step, metrics=metrics) as path:
            root, tag = os.path.split(path)
            self._engine.save_checkpoint(root, tag=tag, client_state=dict(client_state or {}), save_latest=False)

    def load(self, **options: Any) -> dict[str, Any] | None:
        """Load the newest whole checkpoint; returns its client state, or None if nothing was saved yet.

        `options`: of DeepSpeed's `load_checkpoint`. Raises NoUsableCheckpoint, CheckpointUnavailable, and
        CheckpointError when DeepSpeed cannot load a folder that is whole.
        """
        self.last_result = self._folders.newest()
        if self.last_result is None:
            return None
        root, tag = os.path.split(self.last_result.path)
        path, client_state = self._engine.load_checkpoint(root, tag=tag, **options)
        if path is None:
            raise CheckpointError(
                f"{self.last_result.path} is whole, and DeepSpeed cannot load it: see its log, and load with as many "
                "processes and the same ZeRO stage as before"
            )
        loaded: dict[str, Any] = client_state
        return loaded
