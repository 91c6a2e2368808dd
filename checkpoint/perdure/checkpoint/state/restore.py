"""Restores a loaded state into the program's own objects.

Everything is compared before anything is changed: structures, shapes and element types, also inside of modules and
optimizers of PyTorch. Objects that cannot be compared from outside are restored first, and set back if one of them
rejects its part.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from perdure.checkpoint.errors import CheckpointError
from perdure.checkpoint.state.arrays import SavedArray
from perdure.checkpoint.state.buffers import Extent
from perdure.checkpoint.state.pytree import SavedNode, as_node
from perdure.checkpoint.state.wrappers import unwrap


@dataclass
class Differences:
    """Keys that only one of two structures has. Places such as `state['model']['layer.weight']`."""

    missing: list[str] = field(default_factory=list)  # of `into`: what the checkpoint does not have
    unexpected: list[str] = field(default_factory=list)  # of the checkpoint: what `into` does not have


def compare(into: Any, state: Any, differences: Differences | None = None) -> list[StatefulObject]:
    """Compare `into` with `state`, whose arrays may be `SavedArray`s; returns the objects with `load_state_dict`.

    Raises CheckpointError when they do not match.
    """
    return list(_Comparison(differences).compare(into, state, "state"))


def restore_into(
    into: Any, state: Any, *, differences: Differences | None = None, fill: Callable[[], None] | None = None
) -> Any:
    """`into` with the content of `state`. Objects with `load_state_dict` receive their part, tensors and NumPy arrays
    are filled in place, containers are traversed, and everything else is replaced.

    `differences`: accept keys of dicts and of modules that only one of them has, and add them to it. What the
    checkpoint does not have stays as it is; what `into` does not have is left out. `fill`: fills arrays that `into` and
    `state` have in common; called once it is certain that nothing will be rejected.

    Raises CheckpointError when they do not match, or an object rejects its part. Nothing is changed then.
    """
    objects = compare(into, state, differences)
    _require_own_memory(_filled_arrays(into, state, objects))
    _restore_objects([one for one in objects if not one.is_compared])
    if fill is not None:
        fill()
    for one in objects:
        if one.is_compared:
            one.load()
    return _restore(into, state)


@dataclass(frozen=True)
class StatefulObject:
    """An object with `load_state_dict`."""

    target: Any
    part: Any  # what the checkpoint has for it
    place: str
    is_compared: bool  # whether it is known that it accepts its part
    is_partial: bool = False  # a module that may lack keys, or have others

    def load(self) -> None:
        if self.is_partial:
            self.target.load_state_dict(self.part, strict=False)
        else:
            self.target.load_state_dict(self.part)


class _Comparison:
    """Compares a program's structure with a loaded one. `differences`: None if there may be none."""

    def __init__(self, differences: Differences | None) -> None:
        self._differences = differences

    def compare(self, into: Any, state: Any, place: str) -> Iterator[StatefulObject]:
        """Compare `into` with `state`; yields the objects with `load_state_dict`. Raises CheckpointError."""
        if has_state(into):
            yield self._compare_object(unwrap(into), state, place)
        elif isinstance(into, dict):
            if not isinstance(state, dict):
                raise CheckpointError(f"{place}: the checkpoint has a {_type_name(state)} instead of a dict")
            self._compare_keys(into, state, place)
            for key, value in into.items():
                if key in state:
                    yield from self.compare(value, state[key], f"{place}[{key!r}]")
        elif isinstance(into, (list, tuple)):
            yield from self._compare_items(into, state, place)
        elif is_array(into):
            _require_memory(into, place)
            _compare_array(into, state, place)
        elif isinstance(state, SavedNode):
            yield from self._compare_node(into, state, place)

    def _compare_items(self, into: Any, state: Any, place: str) -> Iterator[StatefulObject]:
        if not isinstance(state, (list, tuple)):
            raise CheckpointError(f"{place}: the checkpoint has a {_type_name(state)} instead of a list or tuple")
        if len(into) != len(state):
            raise CheckpointError(f"{place}: the checkpoint has {len(state)} items instead of {len(into)}")
        for index, (value, saved) in enumerate(zip(into, state)):
            yield from self.compare(value, saved, f"{place}[{index}]")

    def _compare_node(self, into: Any, state: SavedNode, place: str) -> Iterator[StatefulObject]:
        node = as_node(into)
        if node is None or node.kind != state.kind:
            saved, own = state.kind.partition(":")[2], type(into).__qualname__
            raise CheckpointError(f"{place}: the checkpoint has a {saved} instead of a {own}")
        yield from self.compare(dict(node.children), dict(state.children), place)

    def _compare_object(self, target: Any, state: Any, place: str) -> StatefulObject:
        """The object, and whether it could be compared with its part from outside, and fits."""
        if is_module(target):
            is_partial = self._differences is not None
            if any(hasattr(one, "materialize") for one in (*target.parameters(), *target.buffers())):
                return StatefulObject(target, state, place, is_compared=False, is_partial=is_partial)
            for name, own in target.state_dict().items():
                if is_array(own) and isinstance(state, dict) and name in state:
                    _require_memory(own, f"{place}[{name!r}]")
            try:
                self._compare_module(target, state, place)
            except CheckpointError:
                if any(module._load_state_dict_pre_hooks for module in target.modules()):
                    # A hook may convert what an earlier version of the program saved.
                    return StatefulObject(target, state, place, is_compared=False, is_partial=is_partial)
                raise
            return StatefulObject(target, state, place, is_compared=True, is_partial=is_partial)
        if is_optimizer(target):
            _compare_optimizer(target, state, place)
            return StatefulObject(target, state, place, is_compared=True)
        return StatefulObject(target, state, place, is_compared=False)

    def _compare_keys(self, into: Any, state: Any, place: str) -> None:
        missing = sorted(map(repr, into.keys() - state.keys()))
        extra = sorted(map(repr, state.keys() - into.keys()))
        if not missing and not extra:
            return
        if self._differences is None:
            raise CheckpointError(
                f"{place}: the checkpoint lacks {missing} and has {extra} in addition; strict=False accepts that"
            )
        self._differences.missing += [f"{place}[{key}]" for key in missing]
        self._differences.unexpected += [f"{place}[{key}]" for key in extra]

    def _compare_module(self, module: Any, state: Any, place: str) -> None:
        if not isinstance(state, dict):
            raise CheckpointError(f"{place}: the checkpoint has a {_type_name(state)} instead of a module's state")
        own = module.state_dict()
        self._compare_keys(own, state, place)
        for name, value in own.items():
            if is_array(value) and name in state:
                _compare_array(value, state[name], f"{place}[{name!r}]")


def _compare_array(into: Any, state: Any, place: str) -> None:
    if not is_array(state):
        raise CheckpointError(f"{place}: the checkpoint has a {_type_name(state)} instead of an array")
    if tuple(into.shape) != tuple(state.shape):
        raise CheckpointError(
            f"{place}: the checkpoint has the shape {tuple(state.shape)} instead of {tuple(into.shape)}"
        )
    if _dtype(into) != _dtype(state):
        raise CheckpointError(
            f"{place}: the checkpoint has elements of {_dtype(state)} instead of {_dtype(into)}, and a conversion "
            "would change numbers. Load without `into`, convert what is returned, and pass it on yourself."
        )


def _compare_optimizer(optimizer: Any, state: Any, place: str) -> None:
    """What PyTorch's optimizers check, and what they convert without asking: their state takes the type of its
    parameter."""
    if not isinstance(state, dict) or not {"param_groups", "state"} <= state.keys():
        raise CheckpointError(f"{place}: the checkpoint does not have the state of an optimizer")
    groups, saved = optimizer.param_groups, state["param_groups"]
    sizes, saved_sizes = [len(group["params"]) for group in groups], [len(group["params"]) for group in saved]
    if sizes != saved_sizes:
        raise CheckpointError(
            f"{place}: the checkpoint has groups of {saved_sizes} parameters instead of {sizes}; give the optimizer "
            "the same parameters in the same order"
        )
    numbers = (number for group in saved for number in group["params"])
    parameters = (parameter for group in groups for parameter in group["params"])
    for number, parameter in zip(numbers, parameters):
        _require_memory(parameter, f"{place}, parameter {number}")
        for name, value in state["state"].get(number, {}).items():
            if name == "step" or not is_array(value) or not parameter.is_floating_point():
                continue
            where = f"{place}['state'][{number}][{name!r}]"
            if getattr(value, "is_floating_point", bool)() and _dtype(value) != _dtype(parameter):
                raise CheckpointError(
                    f"{where}: the checkpoint has elements of {value.dtype}, and the optimizer would convert them to "
                    f"those of its parameter, {parameter.dtype}. Load without `into` and convert them yourself."
                )


def _require_memory(into: Any, place: str) -> None:
    """Raises CheckpointError for an array that cannot hold numbers of its own for each of its elements."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(into, torch.Tensor) and into.is_meta:
        raise CheckpointError(
            f"{place}: your tensor is on the meta device, so it cannot hold numbers; give it memory first, for "
            "instance by module.to_empty(device='cpu')"
        )
    if _is_plain(into) and (extent := Extent.of(into)) is not None and extent.overlaps_itself:
        raise CheckpointError(f"{place}: elements of your array have memory in common; give it memory of its own first")


_Filled = tuple[str, Any, Any]  # place, array of the program, array of the checkpoint


def _filled_arrays(into: Any, state: Any, objects: list[StatefulObject]) -> Iterator[_Filled]:
    """The arrays that are filled in place."""
    for one in objects:
        if one.is_compared and is_module(one.target):
            own = one.target.state_dict()
            names = (name for name, value in own.items() if is_array(value) and name in one.part)
            yield from ((f"{one.place}[{name!r}]", own[name], one.part[name]) for name in names)
    yield from _filled_in(into, state, "state")


def _filled_in(into: Any, state: Any, place: str) -> Iterator[_Filled]:
    if has_state(into):
        return
    if isinstance(into, dict):
        for key in into.keys() & state.keys():
            yield from _filled_in(into[key], state[key], f"{place}[{key!r}]")
    elif isinstance(into, (list, tuple)):
        for index, (value, saved) in enumerate(zip(into, state)):
            yield from _filled_in(value, saved, f"{place}[{index}]")
    elif is_array(into):
        yield place, into, state
    elif isinstance(state, SavedNode) and (node := as_node(into)) is not None:
        yield from _filled_in(dict(node.children), dict(state.children), place)


def _require_own_memory(filled: Iterator[_Filled]) -> None:
    """Raises CheckpointError if two arrays have memory in common and the checkpoint has different content for them.

    Tied weights are the same memory, and have the same content.
    """
    located = [
        (extent, place, saved)
        for place, own, saved in filled
        if _is_plain(own) and (extent := Extent.of(own)) is not None
    ]
    located.sort(key=lambda one: (one[0].device, one[0].begin, one[0].end))
    for index, (extent, place, saved) in enumerate(located):
        for other, other_place, other_saved in located[index + 1 :]:
            if other.device != extent.device or other.begin >= extent.end:
                break
            if other == extent:
                if saved is other_saved or _is_same(saved, other_saved):
                    continue
            elif not extent.overlaps(other):
                continue
            raise CheckpointError(
                f"{place} and {other_place}: your arrays have memory in common, and the checkpoint has different "
                "content for them; give each of them memory of its own first"
            )


def _is_same(one: Any, other: Any) -> bool:
    """Whether two arrays of the same shape and element type have the same bytes."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        first, second = (array.detach().cpu().resolve_conj().resolve_neg() for array in (one, other))
        return bool(torch.equal(*(array.contiguous().reshape(-1).view(torch.uint8) for array in (first, second))))
    return bool(_as_numpy(one).tobytes() == _as_numpy(other).tobytes())


def _is_plain(array: Any) -> bool:
    """Whether it is an array of PyTorch or NumPy itself, in memory that a load fills."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and type(array) in (torch.Tensor, torch.nn.Parameter):
        return bool(array.layout is torch.strided)
    return numpy is not None and type(array) is numpy.ndarray and bool(array.flags.writeable)


def _restore_objects(objects: list[StatefulObject]) -> None:
    """Have every object load its part. If one rejects it, all of them receive back what they had."""
    before: list[tuple[Any, Any]] = []
    for one in objects:
        try:
            if callable(getattr(one.target, "state_dict", None)):
                before.append((one.target, copy.deepcopy(one.target.state_dict())))
            one.load()
        except Exception as error:
            for target, previous in reversed(before):
                with contextlib.suppress(Exception):
                    target.load_state_dict(previous)
            raise CheckpointError(
                f"{one.place}: {type(one.target).__name__} rejects what the checkpoint has "
                f"({type(error).__name__}: {error}). Nothing was loaded."
            ) from error


def _restore(into: Any, state: Any) -> Any:
    if has_state(into):
        return into
    if isinstance(into, dict):
        for key in [key for key in into if key in state]:
            into[key] = _restore(into[key], state[key])
        return into
    if isinstance(into, list):
        into[:] = [_restore(value, saved) for value, saved in zip(into, state)]
        return into
    if isinstance(into, tuple):
        restored = [_restore(value, saved) for value, saved in zip(into, state)]
        return tuple.__new__(type(into), restored)
    if is_array(into) and can_be_filled(into):
        return into if into is state else _filled(into, state)
    if isinstance(state, SavedNode) and (node := as_node(into)) is not None:
        return node.rebuild([_restore(child, state.children.get(key, child)) for key, child in node.children.items()])
    return state


def _filled(into: Any, state: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(into, torch.Tensor):
        with torch.no_grad():
            into.copy_(state if isinstance(state, torch.Tensor) else torch.from_numpy(_as_numpy(state)))
    else:
        into[...] = _as_numpy(state)
    return into


def _as_numpy(state: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(state, torch.Tensor):
        return state.numpy()
    array = sys.modules["numpy"].array(state)
    return array.astype(array.dtype.newbyteorder("="), copy=False)  # PyTorch takes no other byte order


def has_state(value: Any) -> bool:
    return callable(getattr(value, "load_state_dict", None)) and not isinstance(value, type)


def is_module(value: Any) -> bool:
    """Whether it is a module of PyTorch that loads its state as such modules do."""
    return _loads_as_torch_does(value, "nn", "Module")


def is_optimizer(value: Any) -> bool:
    """Whether it is an optimizer of PyTorch that loads its state as such optimizers do."""
    return _loads_as_torch_does(value, "optim", "Optimizer")


def _loads_as_torch_does(value: Any, module: str, kind: str) -> bool:
    """Whether `value` is of this class of PyTorch, and loads its state by the method of that class."""
    torch = sys.modules.get("torch")
    base = None if torch is None else getattr(getattr(torch, module), kind)
    return base is not None and isinstance(value, base) and type(value).load_state_dict is base.load_state_dict


def is_array(value: Any) -> bool:
    """Whether it is an array of any framework, or the description of one."""
    if isinstance(value, SavedArray):
        return True
    frameworks = ((sys.modules.get(name), kind) for name, kind in _ARRAYS)
    return any(module is not None and isinstance(value, getattr(module, kind)) for module, kind in frameworks)


_ARRAYS = (("torch", "Tensor"), ("numpy", "ndarray"), ("jax", "Array"))


def can_be_filled(value: Any) -> bool:
    """Whether the elements of an array can be replaced; those of JAX cannot."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    return (torch is not None and isinstance(value, torch.Tensor)) or (
        numpy is not None and isinstance(value, numpy.ndarray) and value.flags.writeable
    )


def _type_name(value: Any) -> str:
    return "array" if isinstance(value, SavedArray) else type(value).__name__


def _dtype(array: Any) -> str:
    """The same text for the same element type of any framework and byte order."""
    return str(getattr(array.dtype, "name", array.dtype)).rpartition(".")[2]
