"""Writes a state that all processes have: each writes some of its large arrays, and rank 0 the rest.

What is saved is exactly what rank 0 has. Every process writes its share to a file of its own, and reports the digest of
each array. Rank 0 compares these with the digests of its own arrays (XXH3-128), refers to those that are equal, and
writes everything else itself: small arrays, plain values, and what another process has differently or does not have.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from perdure.checkpoint.format import block_digests, digest, part_names
from perdure.checkpoint.format.manifest import FileRecord
from perdure.checkpoint.load import part_files
from perdure.checkpoint.ranks.collective import capture, gather_or_raise
from perdure.checkpoint.ranks.group import Group
from perdure.checkpoint.save.parts.part_writer import PartState, PartWriter
from perdure.checkpoint.save.parts.staging import Staging
from perdure.checkpoint.save.parts.unchanged_arrays import SharedFile
from perdure.checkpoint.state import container
from perdure.checkpoint.state.arrays import SavedArray
from perdure.checkpoint.state.tree import Flat, flatten, uncollected
from perdure.checkpoint.state.worker_threads import WorkerThreads

MIN_ARRAY_BYTES = 1024 * 1024  # smaller ones are rank 0's
_THREADS = min(4, len(os.sched_getaffinity(0)))


def new_writer(root: str, prefix: str, group: Group, *, sharded: bool, replicated: bool, reuses: bool) -> PartWriter:
    """The writer of this process. Raises ValueError for a contradiction."""
    if replicated and (sharded or reuses):
        raise ValueError("replicated goes with neither sharded nor reuse_unchanged")
    if replicated and group.world_size > 1:
        return SplitWriter(root, prefix, group)
    rank, world_size = (group.rank, group.world_size) if sharded else (0, 1)
    writer = PartWriter(root, prefix, rank, world_size, reuses=reuses)
    writer.writes = sharded or group.rank == 0
    return writer


class SplitWriter(PartWriter):
    """The files of one process of several that have the same state."""

    def __init__(self, root: str, prefix: str, group: Group) -> None:
        super().__init__(root, prefix, 0, 1)
        self._group = group
        self._saves = 0

    def take(self, state: Any, staging: Staging | None) -> PartState:
        """All of `state` in rank 0, and elsewhere only what this process writes."""
        if self._group.rank == 0:
            return PartState.of(state, staging)
        with uncollected():
            flat = flatten(state)
            share = _subset(flat, _share(flat, self._group.rank, self._group.world_size))
            layout = container.plan_layout(share)
            return PartState(share, layout, None if staging is None else staging.copy(share, layout))

    def write(self, step: int, state: PartState, begin: Callable[[], None]) -> list[FileRecord]:
        """Write this process's share, and in rank 0 the part itself, whose record comes first. Other processes return
        no records: rank 0 returns those of all files that the step consists of.

        All processes call it. Raises OSError, and CheckpointError in all of them if one could not write its share.
        """
        self._new = []
        self._saves += 1
        shares = gather_or_raise(
            self._group,
            f"shares-{self._prefix}-{step}-{self._saves}",
            capture(partial(self._write_share, step, state, begin)),
            doing=f"saving step {step} in {self._root}",
            encode=_encode,
            decode=_decode,
        )
        if self._group.rank != 0:
            return []
        files = [one for one in shares if one is not None]
        elsewhere = _equal_arrays(state, files)
        content = state.content_without(elsewhere) if elsewhere else state.content()
        part = part_files.write_part(self._root, self._prefix, step, 0, 1, content)
        self._new.append(part)
        used = {one.file for one in elsewhere.values()}
        return [part, *(one.record for one in files if one.record.path in used)]

    def _write_share(self, step: int, state: PartState, begin: Callable[[], None]) -> SharedFile | None:
        begin()
        flat, rank, world_size = state.flat, self._group.rank, self._group.world_size
        numbers = _share(flat, 0, world_size) if rank == 0 else list(range(len(flat.arrays)))
        name = part_names.new_split_name(self._prefix, step, rank, world_size)
        if not numbers or digest.preferred_algorithm() != digest.XXH3_128 or not part_names.is_possible(name):
            return None
        content, places = state.content_of(numbers)
        record = part_files.write_file(self._root, self._prefix, name, content)
        self._new.append(record)
        arrays = {one: SavedArray(p.number, p.kind, p.element, p.shape, p.begin, name) for one, p in places.items()}
        return SharedFile(record, arrays, _digests(state, numbers))


def _share(flat: Flat, rank: int, world_size: int) -> list[int]:
    """The numbers of the arrays that a process writes: the same for all processes whose states have the same arrays."""
    loads = [0] * world_size
    mine = []
    large = [number for number, array in enumerate(flat.arrays) if array.nbytes >= MIN_ARRAY_BYTES]
    for number in sorted(large, key=lambda number: (-flat.arrays[number].nbytes, flat.names[number])):
        least = loads.index(min(loads))
        loads[least] += flat.arrays[number].nbytes
        if least == rank:
            mine.append(number)
    return mine


def _subset(flat: Flat, numbers: Sequence[int]) -> Flat:
    """A dict of these arrays, by their names."""
    names = tuple(flat.names[number] for number in numbers)
    document = {"dict": [[name, {"array": index}] for index, name in enumerate(names)]}
    chosen = tuple(flat.arrays[number] for number in numbers)
    return Flat(document, chosen, names, tuple(flat.references[number] for number in numbers))


def _equal_arrays(state: PartState, files: Sequence[SharedFile]) -> dict[int, SavedArray]:
    """The arrays of rank 0 that are in `files` exactly as rank 0 has them, by number."""
    flat = state.flat
    numbers = {name: number for number, name in enumerate(flat.names)}
    kinds = [(array.kind, array.dtype, array.shape) for array in flat.arrays]
    candidates = {
        numbers[name]: (saved, file.digests[name])
        for file in files
        for name, saved in file.arrays.items()
        if name in numbers and kinds[numbers[name]] == (saved.kind, saved.element, saved.shape)
    }
    own = _digests(state, list(candidates))
    return {number: saved for number, (saved, its) in candidates.items() if own[flat.names[number]] == its}


def _digests(state: PartState, numbers: Sequence[int]) -> dict[str, str]:
    """The digests of these arrays, by name."""

    def find(number: int) -> str:
        view = state.view_of(number)
        return block_digests.hash_block(digest.XXH3_128, state.flat.arrays[number].view() if view is None else view)

    with WorkerThreads(_THREADS, "perdure-digest") as workers:
        placed = list(workers.map(find, numbers, ahead=2 * _THREADS))
    return {state.flat.names[number]: one for number, one in zip(numbers, placed)}


def _encode(file: SharedFile | None) -> Any:
    if file is None:
        return None
    return {
        "record": vars(file.record),
        "arrays": {name: asdict(one) for name, one in file.arrays.items()},
        "digests": dict(file.digests),
    }


def _decode(row: Any) -> SharedFile | None:
    if row is None:
        return None
    arrays = {name: SavedArray(**{**one, "shape": tuple(one["shape"])}) for name, one in row["arrays"].items()}
    return SharedFile(FileRecord(**row["record"]), arrays, row["digests"])
