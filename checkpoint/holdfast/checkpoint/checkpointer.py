"""`Checkpointer`: saves a state and loads the newest whole one, in one line each.

with Checkpointer("/checkpoints", keep=3, asynchronous=True) as checkpointer:
    state = checkpointer.load() or {"step": 0, "model": initial()}
    for step in range(state["step"] + 1, steps + 1):
        train(state)
        checkpointer.save(step, {"step": step, "model": model, "optimizer": optimizer})
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from holdfast.checkpoint import checkpoints, durability, journal, manifest, memory, saving
from holdfast.checkpoint.background import Background
from holdfast.checkpoint.checkpoints import Checkpoint, StepInfo
from holdfast.checkpoint.errors import CheckpointError, NoUsableCheckpoint, patiently
from holdfast.checkpoint.keep import Keep
from holdfast.checkpoint.loading import LoadResult, refused_all
from holdfast.checkpoint.manifest import FileRecord
from holdfast.checkpoint.save_dir import SaveDir, root_of
from holdfast.checkpoint.saving import Series
from holdfast.checkpoint.staging import Staging
from holdfast.checkpoint.state import container, streams
from holdfast.checkpoint.state.tree import Flat, flatten

logger = logging.getLogger("holdfast.checkpoint")

SUFFIX = ".safetensors"


class Checkpointer:
    """Checkpoints of one program in one directory.

    `keep`: how many to keep, a rule (`Keep`), or None to keep all. `asynchronous`: `save` copies the state and returns, the rest happens behind
    training; one save is in flight at a time, and what goes wrong is raised by the next call, or by `close`.
    `prefix` names a series; series in one directory are kept and loaded apart. Not for use by several threads.
    """

    def __init__(
        self,
        save_dir: SaveDir,
        *,
        keep: int | Keep | None = 5,
        asynchronous: bool = False,
        prefix: str = "checkpoint",
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._root = root_of(save_dir)
        rule = Keep(keep) if isinstance(keep, int) else keep
        self._series = Series(self._root, prefix, rule, dict(metadata or {}))
        self._asynchronous = asynchronous
        self._staging = Staging()
        self._background = Background()
        self.last_result: LoadResult | None = None

    # --- saving -------------------------------------------------------------------------------------------

    def save(self, step: int, state: Any) -> None:
        """Commit `state` as the checkpoint of `step` (an int, 0 or more).

        `state`: dicts, lists and tuples of numbers, strings and arrays (NumPy, PyTorch, JAX); an object with
        `state_dict` stands for what that returns. Raises Unsaveable (a TypeError) for anything else, CheckpointError
        when the commit failed, CheckpointUnavailable when the directory's mount is missing; asynchronously, also what
        went wrong with the save before.
        """
        self._background.wait()
        durability.require_mounted(self._root)
        flat = flatten(state)
        layout = container.layout(flat)
        if self._asynchronous:
            staged = self._staging.copy(flat, layout)
            self._background.start(lambda: self._commit(step, [staged]))
        else:
            self._commit(step, pieces(flat, layout))

    def wait(self) -> None:
        """Return when no save is in flight. Raises what went wrong with the last one."""
        self._background.wait()

    def close(self) -> None:
        """End the last save. Raises what went wrong with it."""
        self._background.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _commit(self, step: int, pieces: Any) -> None:
        known = memory.of(self._root)
        name = f"{self._series.prefix}-{step:012d}-{os.urandom(4).hex()}{SUFFIX}"
        path = os.path.join(self._root, name)
        with known.lock:
            try:
                os.makedirs(self._root, exist_ok=True)
                temporary = os.path.join(self._root, f".tmp-{name}")
                size, digest, algorithm = streams.write(temporary, pieces)
                os.replace(temporary, path)
                manifest.sync_directory(self._root)
                record = FileRecord(name, size, digest, algorithm)
                committed = manifest.write(self._root, saving.manifest_of(self._series, step, [record]))
            except OSError as error:
                raise CheckpointError(
                    f"saving step {step} in {self._root}: {error}. The step is not saved; make room or repair the "
                    "disk, then save again."
                ) from error
            known.recent.append(committed)
            known.manifests[committed.name] = committed
            saving.after(self._series, committed, known)

    # --- loading ------------------------------------------------------------------------------------------

    def load(self) -> Any:
        """The newest whole state, every byte of it verified; None when nothing was saved yet.

        `last_result` tells its step and why newer ones were skipped. Raises NoUsableCheckpoint when there are
        checkpoints and all are broken, CheckpointUnavailable when they can not be read now.
        """
        self._background.wait()
        durability.require_mounted(self._root)
        known = memory.of(self._root)
        skipped: list[tuple[int, str]] = []
        for found in checkpoints.newest_first(self._root, self._series.prefix, cache=known.manifests):
            try:
                state = self._read(found)
            except streams.Damaged as damage:
                known.refuse(found)
                logger.warning("skipping step %d in %s: %s", found.step, self._root, damage)
                skipped.append((found.step, str(damage)))
                continue
            journal.note(found.step, journal.LOADED, manifest.path_of(self._root, found.manifests[-1].name))
            self.last_result = LoadResult(found.step, tuple(skipped), tuple(found.all_paths))
            return state
        if skipped:
            raise NoUsableCheckpoint(refused_all(self._root, self._series.prefix, skipped), skipped)
        self.last_result = LoadResult(None)
        return None

    def _read(self, found: Checkpoint) -> Any:
        if found.damage:
            raise streams.Damaged(found.damage)
        newest = found.manifests[-1]
        records = [record for record in newest.files if record.path.endswith(SUFFIX)]
        if len(records) != 1 or len(newest.files) != 1:
            raise CheckpointError(
                f"step {found.step} in {self._root} was not saved by Checkpointer; load it with @load_checkpoint, or "
                "use another prefix"
            )
        path = os.path.join(self._root, records[0].path)
        try:
            data = patiently(lambda: streams.read(path, records[0]), path)
        except (FileNotFoundError, NotADirectoryError):
            raise streams.Damaged(f"{records[0].path} is missing") from None
        return container.parse(data)

    def latest(self) -> int | None:
        """The newest committed step whose files are there in full size; None when there is none."""
        return checkpoints.latest(self._root, prefix=self._series.prefix)

    def steps(self, *, verify: bool = False) -> list[StepInfo]:
        """Every saved step, newest first; `verify` reads every file."""
        return checkpoints.steps(self._root, prefix=self._series.prefix, verify=verify)


def pieces(flat: Flat, layout: container.Layout) -> Any:
    """The file's bytes, piece by piece; arrays that lie in memory as they are written are not copied."""
    yield memoryview(layout.header)
    for number, _, size in layout.places():
        array = flat.arrays[number]
        if array.view is not None:
            yield array.view()
        elif size:
            data = memoryview(bytearray(size))
            array.write(data)
            yield data
