"""Writes the part of one process, and what it shares with parts of earlier steps."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from perdure.checkpoint.format import part_names
from perdure.checkpoint.format.manifest import FileRecord
from perdure.checkpoint.load import part_files
from perdure.checkpoint.load.part_files import Content
from perdure.checkpoint.save.parts.staging import Staging
from perdure.checkpoint.save.parts.unchanged_arrays import SavePlan, SharedFile, UnchangedArrays
from perdure.checkpoint.state import container
from perdure.checkpoint.state.arrays import SavedArray
from perdure.checkpoint.state.container import Layout
from perdure.checkpoint.state.tree import Flat, flatten, uncollected


@dataclass(frozen=True)
class PartState:
    """A state that is to be written."""

    flat: Flat
    layout: Layout
    staged: memoryview | None  # a copy of it, as the file that `layout` describes; None: the program's memory

    @classmethod
    def of(cls, state: Any, staging: Staging | None) -> PartState:
        """`state` as it is now: copied by `staging`, or if that is None, in the program's memory."""
        with uncollected():
            flat = flatten(state)
            layout = container.plan_layout(flat)
            return cls(flat, layout, None if staging is None else staging.copy(flat, layout))

    def content(self) -> Content:
        """All of it."""
        if self.staged is not None:
            return Content(self.layout.size, [self.staged])
        return part_files.make_content(self.flat, self.layout)

    def content_without(self, elsewhere: dict[int, SavedArray]) -> Content:
        """All but the arrays that are in other files."""
        layout = container.plan_layout(self.flat, elsewhere)
        return Content(layout.size, self._pieces(layout, range(len(self.flat.arrays))))

    def content_of(self, numbers: list[int]) -> tuple[Content, dict[str, SavedArray]]:
        """These arrays as a file, and where each lies in it, by name. The file is a dict of them."""
        flat = self.flat
        names = tuple(flat.names[number] for number in numbers)
        document = {"dict": [[name, {"array": number}] for number, name in enumerate(names)]}
        chosen = tuple(flat.arrays[number] for number in numbers)
        layout = container.plan_layout(Flat(document, chosen, names, ()))
        places = {
            names[index]: SavedArray(index, chosen[index].kind, chosen[index].dtype, chosen[index].shape, begin)
            for index, begin, _ in layout.places()
        }
        return Content(layout.size, self._pieces(layout, numbers)), places

    def view_of(self, number: int) -> memoryview | None:
        """The bytes of an array; None if they are not in memory in the form in which they are written."""
        if self.staged is not None:
            begin, size = self._staged_places[number]
            return self.staged[begin : begin + size]
        array = self.flat.arrays[number]
        return None if array.address is None else array.view()

    @cached_property
    def _staged_places(self) -> dict[int, tuple[int, int]]:
        return {number: (begin, size) for number, begin, size in self.layout.places()}

    def _pieces(self, layout: Layout, numbers: range | list[int]) -> Iterator[memoryview]:
        yield memoryview(layout.header)
        for index, _, _ in layout.places():
            view = self.view_of(numbers[index])
            yield self.flat.arrays[numbers[index]].view() if view is None else view


class PartWriter:
    """The parts of one process, step by step. `commit` and `discard` end what `write` began. `writes`: whether this
    process writes anything."""

    writes = True

    def __init__(self, root: str, prefix: str, rank: int, world_size: int, *, reuses: bool = False) -> None:
        """`reuses`: refer to what earlier steps have written, instead of writing it again."""
        self._root, self._prefix, self._rank, self._world_size = root, prefix, rank, world_size
        self._unchanged = UnchangedArrays(root) if reuses else None
        self._plan = SavePlan()
        self._shared: SharedFile | None = None
        self._new: list[FileRecord] = []

    @property
    def new_paths(self) -> list[str]:
        """Absolute paths of the files that the last `write` has written."""
        return [os.path.join(self._root, record.path) for record in self._new]

    def take(self, state: Any, staging: Staging | None) -> PartState:
        """What this process has to write of `state` (`PartState.of`)."""
        return PartState.of(state, staging)

    def write(self, step: int, state: PartState, begin: Callable[[], None]) -> list[FileRecord]:
        """Call `begin`, then write the part; returns the records of all files that it consists of, its own first.

        Raises OSError, and what `begin` raises.
        """
        begin()
        self._plan, self._shared, self._new = SavePlan(), None, []
        content = state.content()
        if self._unchanged is not None:
            self._plan = self._unchanged.plan(state.flat, state.view_of)
            if self._plan.new:
                self._shared = self._write_shared(step, state)
            elsewhere = dict(self._plan.elsewhere)
            if self._shared is not None:
                names = state.flat.names
                elsewhere.update({number: self._shared.arrays[names[number]] for number in self._plan.new})
            if elsewhere:
                content = state.content_without(elsewhere)
        part = part_files.write_part(self._root, self._prefix, step, self._rank, self._world_size, content)
        self._new.append(part)
        return [part, *(file.record for file in self._plan.files), *([self._shared.record] if self._shared else [])]

    def _write_shared(self, step: int, state: PartState) -> SharedFile | None:
        name = part_names.new_shared_name(self._prefix, step, self._rank, self._world_size)
        if not part_names.is_possible(name):
            return None
        content, places = state.content_of(self._plan.new)
        record = part_files.write_file(self._root, self._prefix, name, content)
        self._new.append(record)
        arrays = {one: SavedArray(p.number, p.kind, p.element, p.shape, p.begin, name) for one, p in places.items()}
        return SharedFile(record, arrays, {one: self._plan.seen[one].digest for one in arrays})

    def commit(self) -> None:
        """The step is committed: later ones may refer to it."""
        if self._unchanged is not None:
            self._unchanged.commit(self._plan, self._shared)

    def discard(self) -> None:
        """All processes know that the step is not committed: remove what was written for it."""
        for record in self._new:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._root, record.path))

    def forget(self) -> None:
        """A load has found damage: refer to nothing that was written so far."""
        if self._unchanged is not None:
            self._unchanged.forget()
