"""Which large arrays of a state are as they were at earlier saves, and in which file they are.

Frozen layers, and whatever else training does not change, need not be written and uploaded with every step. An array
that seems unchanged since the save before goes to a file of its own kind, a *shared* one, with others like it. Later
steps refer to it as long as every array in it is unchanged. So a shared file never holds anything that the newest step
does not need.

Whether an array is unchanged is first judged by a sample of it, which costs next to nothing. An array is referred to
only if the digest of all of its bytes (XXH3-128) is that of the bytes in the file. An array that has changed after it
was in a shared file never comes into one again, so each array can be the cause of one rewriting at most.

What was written is known of this process's own saves alone, and only of committed ones. A process that starts anew
writes everything once more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from perdure.checkpoint.format import block_digests, digest
from perdure.checkpoint.format.manifest import FileRecord
from perdure.checkpoint.state.arrays import Array, SavedArray
from perdure.checkpoint.state.tree import Flat
from perdure.checkpoint.state.worker_threads import WorkerThreads

MIN_ARRAY_BYTES = 1024 * 1024  # smaller ones are written with every step
MIN_FILE_BYTES = 16 * 1024 * 1024  # a shared file is worth its round trip to the bucket
_MAX_FILES = 8  # that one step refers to
_PIECE_BYTES, _PIECES = 4096, 16  # of the sample of an array
_THREADS = min(4, len(os.sched_getaffinity(0)))

ViewOf = Callable[[int], "memoryview | None"]  # the bytes of an array, by number; None if they are not in memory


class _Kind(NamedTuple):
    """What an array must have in common with an earlier one."""

    kind: str
    element: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, array: Array) -> _Kind:
        return cls(array.kind, array.dtype, array.shape)


class _Seen(NamedTuple):
    """An array at the last save."""

    kind: _Kind
    sample: str
    digest: str  # of all of its bytes; empty if they were certainly others than before


@dataclass(frozen=True)
class SharedFile:
    """A file that was committed, and what is in it."""

    record: FileRecord
    arrays: Mapping[str, SavedArray]  # by name
    digests: Mapping[str, str]  # of each array


@dataclass
class SavePlan:
    """What a save writes, and what it refers to."""

    elsewhere: dict[int, SavedArray] = field(default_factory=dict)  # in files of earlier steps
    new: list[int] = field(default_factory=list)  # numbers of the arrays for a new shared file, in their order
    files: list[SharedFile] = field(default_factory=list)  # that the step refers to
    seen: dict[str, _Seen] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)  # names of arrays that were in a shared file and are not any more


class UnchangedArrays:
    """What one process knows of the arrays of a series."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._seen: dict[str, _Seen] = {}
        self._files: list[SharedFile] = []
        self._changing: set[str] = set()  # names that no shared file shall hold

    def plan(self, flat: Flat, view_of: ViewOf) -> SavePlan:
        """What to do with the arrays of `flat`. Changes nothing: a save may fail."""
        plan = SavePlan()
        if digest.preferred_algorithm() != digest.XXH3_128:
            return plan  # 32 bits are too few to take one content for another one
        self._examine(flat, view_of, plan)
        numbers = {name: number for number, name in enumerate(flat.names)}
        for file in self._files:
            if self._is_there(file) and all(self._is_in(file, name, plan.seen) for name in file.arrays):
                plan.files.append(file)
                plan.elsewhere |= {
                    numbers[name]: replace(one, number=numbers[name]) for name, one in file.arrays.items()
                }
            else:
                plan.changed |= {name for name in file.arrays if not self._is_in(file, name, plan.seen)}
        barred = self._changing | plan.changed
        new = [
            numbers[name]
            for name, one in plan.seen.items()
            if one.digest and name not in barred and numbers[name] not in plan.elsewhere
        ]
        if len(plan.files) < _MAX_FILES and sum(flat.arrays[number].nbytes for number in new) >= MIN_FILE_BYTES:
            plan.new = sorted(new)
        return plan

    def commit(self, plan: SavePlan, written: SharedFile | None) -> None:
        """The save of `plan` is committed. `written`: the file with the arrays in `plan.new`."""
        self._seen = plan.seen
        self._changing |= plan.changed
        self._files = [*plan.files, *([] if written is None else [written])]

    def forget(self) -> None:
        """Write everything anew with the next save."""
        self._seen, self._files = {}, []

    def _examine(self, flat: Flat, view_of: ViewOf, plan: SavePlan) -> None:
        """Enter every large array into `plan.seen`."""
        with WorkerThreads(_THREADS, "perdure-digest") as workers:
            pending = []
            for number, (name, array) in enumerate(zip(flat.names, flat.arrays)):
                view = view_of(number) if array.nbytes >= MIN_ARRAY_BYTES else None
                if view is not None:
                    pending.append((name, workers.submit(partial(_see, array, view, self._seen.get(name)))))
            for name, one in pending:
                plan.seen[name] = one.result()

    def _is_there(self, file: SharedFile) -> bool:
        try:
            return os.stat(os.path.join(self._root, file.record.path)).st_size == file.record.size
        except OSError:
            return False

    @staticmethod
    def _is_in(file: SharedFile, name: str, seen: Mapping[str, _Seen]) -> bool:
        """Whether an array is now as it is in the file."""
        now, saved = seen.get(name), file.arrays[name]
        return (
            now is not None
            and now.digest == file.digests[name]
            and now.kind == (saved.kind, saved.element, saved.shape)
        )


def _see(array: Array, view: memoryview, before: _Seen | None) -> _Seen:
    kind, sample = _Kind.of(array), _sample(view)
    if before is None or (before.kind, before.sample) != (kind, sample):
        return _Seen(kind, sample, "")
    return _Seen(kind, sample, block_digests.hash_block(digest.XXH3_128, view))


def _sample(view: memoryview) -> str:
    """The digest of some pieces of an array, evenly spread. Unequal samples mean unequal arrays."""
    step = max(1, (len(view) - _PIECE_BYTES) // (_PIECES - 1))
    hasher = digest.new_hasher(digest.XXH3_128)
    for begin in range(0, max(1, len(view) - _PIECE_BYTES + 1), step):
        hasher.update(view[begin : begin + _PIECE_BYTES])
    return hasher.hexdigest()
