"""How the state of a process is loaded: as new objects, into those of the program, or array by array later.

All first verify its files (`prepare`), so that all processes can agree on a step of which each can verify its own, and
only then return it (`finish`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from perdure.checkpoint.errors import CheckpointError
from perdure.checkpoint.load.block_compare import DamagedFile
from perdure.checkpoint.load.part_file import Place
from perdure.checkpoint.load.state_files import StateFiles
from perdure.checkpoint.state import container
from perdure.checkpoint.state.arrays import SavedArray, require_module
from perdure.checkpoint.state.buffers import copy_bytes, large_buffer
from perdure.checkpoint.state.restore import Differences, compare, restore_into
from perdure.checkpoint.state.targets import Plan, plan_targets

_MIN_OWN_BUFFER_BYTES = 1024 * 1024

Finish = Callable[[], Any]


class StateReader(Protocol):
    """Loads a state in two phases.

    `reads_all`: whether all of the file is verified. `fills`: whether `finish` reads the file again and changes objects
    of the program, so that it may fail. `has_filled`: whether it has begun to change them.
    """

    reads_all: bool
    fills: bool
    has_filled: bool

    def prepare(self, files: StateFiles) -> Finish:
        """Verify the files; returns what finishes the load. Nothing of the program changes.

        Raises DamagedFile, CheckpointUnavailable, and CheckpointError when it does not fit.
        """
        ...


class NewState:
    """The state in new memory. `keys`: only these (`container.select`); the rest of the file is not read."""

    fills = False
    has_filled = False

    def __init__(self, keys: Iterable[Any] | None = None) -> None:
        self._keys = None if keys is None else list(keys)
        self.reads_all = keys is None

    def prepare(self, files: StateFiles) -> Finish:
        if self._keys is None:
            state = files.load_state()
        else:
            header = _selected(files, self._keys)
            known: list[Any] = list(header.arrays)
            _fill_new(files, known, [header.arrays[number] for number in container.numbers_in(header)])
            state = files.parsed(lambda: container.rebuild(header, known))
        return lambda: state


class LazyArray:
    """An array of a checkpoint that is read when it is needed. Each `load` reads it anew, and verifies what it reads.

    `dtype`: the name of its element type. `nbytes`: its size.
    """

    def __init__(self, files: StateFiles, saved: SavedArray, name: str) -> None:
        self._files, self._saved, self._name = files, saved, name

    @property
    def shape(self) -> tuple[int, ...]:
        return self._saved.shape

    @property
    def dtype(self) -> str:
        return self._saved.dtype

    @property
    def nbytes(self) -> int:
        return self._saved.nbytes

    def load(self) -> Any:
        """The array, in the framework that it was saved from.

        Raises CheckpointError when it is damaged, or the checkpoint was removed since, and CheckpointUnavailable when
        it cannot be read now.
        """
        known = {self._saved.number: None}
        try:
            _fill_new(self._files, known, [self._saved])
        except DamagedFile as damage:
            raise CheckpointError(f"{self._name} cannot be loaded: {damage}. Load anew for an older step.") from damage
        return known[self._saved.number]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """As `numpy.asarray` requests it."""
        if copy is False:
            raise ValueError(f"{self._name} is not in memory, so a copy of it is needed")
        return require_module("numpy").asarray(self.load(), dtype)

    def __repr__(self) -> str:
        return f"LazyArray({self._name}, shape={self.shape}, dtype={self.dtype})"


class LazyState:
    """The state with a LazyArray in the place of every array. `keys`: only these (`container.select`)."""

    fills = False
    has_filled = False
    reads_all = False

    def __init__(self, keys: Iterable[Any] | None = None) -> None:
        self._keys = None if keys is None else list(keys)

    def prepare(self, files: StateFiles) -> Finish:
        header = _selected(files, self._keys)
        known: list[Any] = list(header.arrays)
        numbers = container.numbers_in(header)
        _fill_new(files, known, [one for one in header.arrays if one.number in numbers and not one.is_plain])
        for one in header.arrays:
            if one.is_plain:
                known[one.number] = LazyArray(files, one, f"array {one.number} of {files.name}")
        state = files.parsed(lambda: container.rebuild(header, known))
        return lambda: state


def new_reader(into: Any, *, strict: bool, keys: Iterable[Any] | None, lazy: bool) -> StateReader:
    """The reader for the arguments of `Checkpointer.load`. Raises ValueError for a contradiction."""
    if into is not None and lazy:
        raise ValueError("give either into or lazy, not both: what is loaded into objects has to be read")
    if into is not None:
        return StateInto(into, strict=strict, keys=keys)
    return LazyState(keys) if lazy else NewState(keys)


class StateInto:
    """The state in the objects of `into`, as `restore.restore_into` does it.

    Their arrays are filled in place, block by block. New memory is needed only for what cannot be: arrays of an object
    that is not known to copy them, of JAX, or in another order in memory. The file is read twice: first to verify it,
    and then, from the page cache if it fits, to fill the arrays.

    `keys`: only these (`container.select`) are loaded, and `into` has only them.
    """

    fills = True

    def __init__(self, into: Any, *, strict: bool = True, keys: Iterable[Any] | None = None) -> None:
        self.has_filled = False
        self.reads_all = keys is None
        self._keys = None if keys is None else list(keys)
        self._into = into
        self._strict = strict
        self.differences: Differences | None = None  # of the state that was loaded last, unless `strict`

    def prepare(self, files: StateFiles) -> Finish:
        if self._keys is None:
            files.verify()
            header = files.header()
        else:
            header = _selected(files, self._keys)
            wanted = (header.arrays[number] for number in container.numbers_in(header))
            files.verify([(one.file, one.begin, one.begin + one.nbytes) for one in wanted])
        known: list[Any] = list(header.arrays)
        _fill_new(files, known, [one for one in header.arrays if not one.is_plain])
        state = files.parsed(lambda: container.rebuild(header, known))
        objects = compare(self._into, state, None if self._strict else Differences())
        plan = plan_targets(self._into, state, objects)
        return lambda: self._finish(files, header, known, plan)

    def _finish(self, files: StateFiles, header: container.Header, known: list[Any], plan: Plan) -> Any:
        _fill_new(files, known, [one for one in header.arrays if one.number in plan.new])
        places = []
        for number, target in plan.in_place.items():
            saved = header.arrays[number]
            known[number] = target.array
            places.append(Place(saved.begin, saved.begin + saved.nbytes, target.write, saved.file))

        def fill() -> None:
            self.has_filled = True
            files.fill(places)
            _note_changes(target.array for target in plan.in_place.values())

        self.differences = None if self._strict else Differences()
        state = container.rebuild(header, known)
        return restore_into(self._into, state, differences=self.differences, fill=fill)


def _selected(files: StateFiles, keys: Iterable[Any] | None) -> container.Header:
    """The header of a state with `keys` alone (None: all). Raises CheckpointError if it has no such keys."""
    if not files.compares_blocks:
        files.verify()
    header = files.header()
    if keys is None:
        return header
    selected: container.Header = files.parsed(lambda: container.select(header, keys))
    return selected


def _fill_new(files: StateFiles, known: list[Any] | dict[int, Any], wanted: Iterable[SavedArray]) -> None:
    """Load `wanted` into new memory, and enter them into `known` under their numbers."""
    buffers: dict[SavedArray, memoryview] = {}
    for one in wanted:
        size = one.nbytes
        buffers[one] = large_buffer(size) if size >= _MIN_OWN_BUFFER_BYTES else memoryview(bytearray(size))
    files.fill(
        [Place(one.begin, one.begin + one.nbytes, partial(_write, buffer), one.file) for one, buffer in buffers.items()]
    )
    for one, buffer in buffers.items():
        known[one.number] = files.parsed(partial(container.restore_array, one, buffer))


def _write(buffer: memoryview, offset: int, piece: memoryview) -> None:
    copy_bytes(buffer[offset : offset + len(piece)], piece)


def _note_changes(changed: Iterable[Any]) -> None:
    """Have PyTorch know that tensors were changed, as if by its own operations."""
    torch = sys.modules.get("torch")
    increment = getattr(getattr(getattr(torch, "autograd", None), "graph", None), "increment_version", None)
    if torch is None or increment is None:
        return
    for one in changed:
        if isinstance(one, torch.Tensor) and not one.is_inference():
            increment(one)
