"""torch.distributed.checkpoint: sharded states (FSDP2, DTensor), committed and verified, that load on any number of
processes.

For example:

    with DcpCheckpoints("/checkpoints", asynchronous=True) as checkpoints:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        step = checkpoints.load(state)          # fills the tensors in place; None: nothing saved yet
        checkpoints.save(step, state)
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from perdure.checkpoint import preemption
from perdure.checkpoint.durability import status
from perdure.checkpoint.folders import Folder, Folders
from perdure.checkpoint.format.save_dir import SaveDir, root_of
from perdure.checkpoint.load.saved_step import newest_first
from perdure.checkpoint.ranks.group import Group, TorchGroup, detect_group
from perdure.checkpoint.save.background import Background
from perdure.checkpoint.save.handle import SaveHandle
from perdure.checkpoint.save.retention.keep_rule import Keep

logger = logging.getLogger("perdure.checkpoint")


class DcpCheckpoints:
    """Checkpoints in DCP's format, one folder each. Every process calls the same methods in the same order.

    `asynchronous`: `save` copies the state and returns, and the rest happens in the background. One save is in flight
    at a time. Its failure is raised by its handle, by the next call or by `close`, or logged at exit. `process_group`:
    the processes that save together; by default all.

    `last_result`: the folder that the last `load` used, and what it skipped.
    """

    def __init__(
        self,
        save_dir: SaveDir,
        *,
        keep: int | Keep | None = 5,
        prefix: str = "dcp",
        asynchronous: bool = False,
        group: Group | None = None,
        process_group: Any = None,
    ) -> None:
        self._prefix = prefix
        self._asynchronous = asynchronous
        if group is None:
            group = (
                detect_group(root_of(save_dir)) if process_group is None else TorchGroup(process_group=process_group)
            )
        self._group = group
        self._folders = Folders(save_dir, keep=keep, prefix=prefix, group=group)
        self._background = Background()
        self._stager: DefaultStager | None = None
        self.last_result: Folder | None = None

    def save(
        self,
        step: int,
        state: dict[str, Any],
        *,
        metrics: Mapping[str, float] | None = None,
        wait: bool | None = None,
    ) -> SaveHandle[None]:
        """Save `state` as the checkpoint of `step`.

        `wait`: whether to return only once the step is committed; None: unless saves are `asynchronous`. Once the
        machine is about to be taken, every save waits.

        Raises what DCP raises (its CheckpointException is no Exception, but a BaseException), and CheckpointError.
        """
        self._background.wait()
        handle: SaveHandle[None] = SaveHandle(step, lambda: self._is_durable(step))
        is_asynchronous = (self._asynchronous if wait is None else not wait) and not preemption.is_noticed()
        if not is_asynchronous:
            handle.run(lambda: self._save_now(step, state, metrics))
            return handle
        folder = contextlib.ExitStack()
        path = folder.enter_context(self._folders.saving(step, metrics=metrics))
        written = dcp.async_save(
            state,
            checkpoint_id=path,
            process_group=self._process_group(),
            async_stager=self._reused_stager(),
            no_dist=self._group.world_size == 1,
        )

        def commit() -> None:
            with folder:  # commits when it ends without an error
                getattr(written, "upload_completion", written).result()

        self._background.start(lambda: handle.run(commit), handle)
        return handle

    def _save_now(self, step: int, state: dict[str, Any], metrics: Mapping[str, float] | None) -> None:
        with self._folders.saving(step, metrics=metrics) as path:
            dcp.save(state, checkpoint_id=path, process_group=self._process_group())

    def _process_group(self) -> Any:
        return self._group.process_group if isinstance(self._group, TorchGroup) else None

    def _reused_stager(self) -> DefaultStager:
        """New memory costs more than the copy into it, so one stager keeps its buffers."""
        if self._stager is None:
            has_gpu = torch.cuda.is_available()
            self._stager = DefaultStager(
                StagingOptions(
                    use_pinned_memory=has_gpu,
                    use_shared_memory=False,
                    use_async_staging=False,
                    use_non_blocking_copy=has_gpu,
                )
            )
        return self._stager

    def _is_durable(self, step: int) -> bool | None:
        saved = next((one for one in newest_first(self._folders.root, self._prefix) if one.step == step), None)
        return False if saved is None else status.is_durable(saved.file_versions)

    def load(self, state: dict[str, Any]) -> int | None:
        """Fill `state` in place from the newest whole checkpoint; returns its step, or None if nothing was saved yet.

        Any number of processes may have saved it. Raises NoUsableCheckpoint and CheckpointUnavailable.
        """
        self._background.wait()
        self.last_result = self._folders.newest()
        if self.last_result is None:
            return None
        dcp.load(state, checkpoint_id=self.last_result.path, process_group=self._process_group())
        return self.last_result.step

    def wait(self) -> None:
        """Return when no save is in flight. Raises the failure of the last one."""
        self._background.wait()

    def close(self) -> None:
        """Wait for the last save. Raises its failure."""
        self._background.wait()
        if self._stager is not None:
            self._stager.close()

    def __enter__(self) -> DcpCheckpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except BaseException:
            if error is None:
                raise
            logger.exception("the last save failed as well")
