"""Arrays of the program that receive the bytes of a file in place, so that a load needs no second copy of them.

An array qualifies if its memory holds exactly what the file holds: the same element type, in C order. No two arrays
that qualify have memory in common, because the threads that fill them work at the same time.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from perdure.checkpoint.state.arrays import SavedArray
from perdure.checkpoint.state.buffers import Extent, address_of
from perdure.checkpoint.state.pytree import SavedNode, as_node
from perdure.checkpoint.state.restore import StatefulObject, can_be_filled, has_state, is_array, is_module, is_optimizer

WriteAt = Callable[[int, memoryview], None]  # (offset in an array, bytes)


@dataclass(frozen=True)
class Target:
    """An array of the program that one of the file fills."""

    array: Any
    write: WriteAt


@dataclass
class Plan:
    """Where the arrays of a file go."""

    in_place: dict[int, Target] = field(default_factory=dict)  # number of the saved array → target
    new: set[int] = field(default_factory=set)  # numbers of those that need new memory


def plan_targets(into: Any, state: Any, objects: Iterable[StatefulObject]) -> Plan:
    """Where the arrays of `state` go if it is restored into `into`, which it was compared with. An array that `into`
    has no place for is left out. `objects`: what the comparison returned."""
    pairs: list[tuple[Any, SavedArray]] = []
    plan = Plan()
    for one in objects:
        _pair_object(one, pairs, plan.new)
    _pair(into, state, pairs, plan.new)
    shared = _sharing(pairs)
    # `restore` compares what such arrays receive, before it fills any.
    plan.new |= {saved.number for own, saved in pairs if id(own) in shared}
    for own, saved in pairs:
        target = None if saved.number in plan.new else _as_target(own, saved)
        if target is not None:
            plan.in_place.setdefault(saved.number, target)
    plan.new |= {saved.number for _, saved in pairs} - plan.in_place.keys()
    return plan


def _pair_object(one: StatefulObject, pairs: list[tuple[Any, SavedArray]], new: set[int]) -> None:
    """An object copies what it receives. Its own arrays may be filled before that if it only copies."""
    own: dict[Any, Any] = {}
    if one.is_compared and is_module(one.target) and _only_copies(one.target):
        own = {(name,): value for name, value in one.target.state_dict().items()}
    elif one.is_compared and is_optimizer(one.target):
        states = one.target.state_dict()["state"]
        own = {("state", number, name): value for number, those in states.items() for name, value in those.items()}
    for place, saved in _saved_arrays(one.part, ()):
        mine = own.get(place)
        if mine is not None and can_be_filled(mine) and _fits(mine, saved):
            pairs.append((mine, saved))
        else:
            new.add(saved.number)


def _pair(into: Any, state: Any, pairs: list[tuple[Any, SavedArray]], new: set[int]) -> None:
    """Traverse both as `restore` does."""
    if has_state(into):
        return
    if isinstance(into, dict):
        for key in into.keys() & state.keys():
            _pair(into[key], state[key], pairs, new)
    elif isinstance(into, (list, tuple)):
        for mine, saved in zip(into, state):
            _pair(mine, saved, pairs, new)
    elif is_array(into) and can_be_filled(into) and isinstance(state, SavedArray):
        pairs.append((into, state))
    elif isinstance(state, SavedNode) and (node := as_node(into)) is not None:
        for key, child in node.children.items():
            if key in state.children:
                _pair(child, state.children[key], pairs, new)
    else:
        new.update(saved.number for _, saved in _saved_arrays(state, ()))


def _saved_arrays(value: Any, place: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], SavedArray]]:
    """Every array in a loaded structure, with its place."""
    if isinstance(value, SavedArray):
        yield place, value
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _saved_arrays(child, (*place, key))
        metadata = getattr(value, "_metadata", None)
        yield from _saved_arrays(metadata, (*place, "_metadata"))
    elif isinstance(value, SavedNode):
        yield from _saved_arrays(dict(value.children), place)
    elif isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray)) and not is_array(value):
        for index, child in enumerate(value):
            yield from _saved_arrays(child, (*place, index))


def _only_copies(module: Any) -> bool:
    """Whether a module copies what it receives, unchanged: none of its parts has a method or a hook of its own."""
    return not any(
        part._load_state_dict_pre_hooks
        or not getattr(type(part)._load_from_state_dict, "__module__", "").startswith("torch.nn.modules.")
        for part in module.modules()
    )


def _fits(own: Any, saved: SavedArray) -> bool:
    dtype = str(getattr(own.dtype, "name", own.dtype)).rpartition(".")[2]
    return tuple(own.shape) == saved.shape and dtype == saved.dtype


def _as_target(own: Any, saved: SavedArray) -> Target | None:
    """`own` as a target for the bytes of `saved`; None if its memory would hold other bytes."""
    if not saved.nbytes or not _fits(own, saved):
        return None
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and type(own) in (torch.Tensor, torch.nn.Parameter):
        if own.layout is not torch.strided or not own.is_contiguous() or own.is_conj() or own.is_neg() or own.is_meta:
            return None
        return Target(own, _to_memory(own.data_ptr()) if own.is_cpu else _to_device(torch, own))
    if numpy is not None and type(own) is numpy.ndarray and own.dtype.isnative and own.flags.c_contiguous:
        return Target(own, _to_memory(own.__array_interface__["data"][0]))
    return None


def _to_memory(address: int) -> WriteAt:
    def write(offset: int, piece: memoryview) -> None:
        ctypes.memmove(address + offset, address_of(piece), len(piece))

    return write


def _to_device(torch: Any, tensor: Any) -> WriteAt:
    elements = tensor.detach().reshape(-1).view(torch.uint8)

    def write(offset: int, piece: memoryview) -> None:
        elements[offset : offset + len(piece)].copy_(torch.frombuffer(piece, dtype=torch.uint8))

    return write


def _sharing(pairs: Iterable[tuple[Any, SavedArray]]) -> set[int]:
    """The `id`s of arrays that have memory in common with another one, unless both receive the same saved array and are
    the same memory in the same order."""
    shared: set[int] = set()
    located = [(extent, own, saved) for own, saved in pairs if (extent := Extent.of(own)) is not None]
    located.sort(key=lambda one: (one[0].device, one[0].begin, one[0].end))
    for index, (extent, own, saved) in enumerate(located):
        for other, theirs, their_saved in located[index + 1 :]:
            if other.device != extent.device or other.begin >= extent.end:
                break
            if other != extent or their_saved.number != saved.number:
                shared |= {id(own), id(theirs)}
    return shared
