"""Restores a loaded state into the program's own objects."""

from __future__ import annotations

import sys
from typing import Any

from perdure.checkpoint.errors import CheckpointError
from perdure.checkpoint.state.wrappers import unwrap


def restore_into(into: Any, state: Any) -> Any:
    """`into` with the content of `state`. Objects with `load_state_dict` receive their part, tensors and NumPy arrays
    are filled in place, containers are traversed, and everything else is replaced.

    The structures are compared before anything is changed. Raises CheckpointError when they do not match.
    """
    _compare(into, state, "state")
    return _restore(into, state)


def _compare(into: Any, state: Any, place: str) -> None:
    if _has_state(into):
        return
    if isinstance(into, dict) and isinstance(state, dict):
        if into.keys() != state.keys():
            missing, extra = (
                sorted(map(repr, into.keys() - state.keys())),
                sorted(map(repr, state.keys() - into.keys())),
            )
            raise CheckpointError(f"{place}: the checkpoint lacks {missing} and has {extra} in addition")
        for key, value in into.items():
            _compare(value, state[key], f"{place}[{key!r}]")
    elif isinstance(into, (list, tuple)) and isinstance(state, (list, tuple)):
        if len(into) != len(state):
            raise CheckpointError(f"{place}: the checkpoint has {len(state)} items instead of {len(into)}")
        for index, (value, saved) in enumerate(zip(into, state)):
            _compare(value, saved, f"{place}[{index}]")
    elif _is_array(into) and tuple(into.shape) != tuple(getattr(state, "shape", ())):
        shape = tuple(getattr(state, "shape", ()))
        raise CheckpointError(f"{place}: the checkpoint has the shape {shape} instead of {tuple(into.shape)}")


def _restore(into: Any, state: Any) -> Any:
    if _has_state(into):
        unwrap(into).load_state_dict(state)
        return into
    if isinstance(into, dict) and isinstance(state, dict):
        for key in into:
            into[key] = _restore(into[key], state[key])
        return into
    if isinstance(into, list) and isinstance(state, (list, tuple)):
        into[:] = [_restore(value, saved) for value, saved in zip(into, state)]
        return into
    if isinstance(into, tuple) and isinstance(state, (list, tuple)):
        return tuple(_restore(value, saved) for value, saved in zip(into, state))
    if _is_array(into):
        return _filled(into, state)
    return state


def _filled(into: Any, state: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(into, torch.Tensor):
        with torch.no_grad():
            into.copy_(state)
    else:
        into[...] = state
    return into


def _has_state(value: Any) -> bool:
    return callable(getattr(value, "load_state_dict", None)) and not isinstance(value, type)


def _is_array(value: Any) -> bool:
    """Whether `value` is an array whose elements can be replaced; those of JAX cannot."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    return (torch is not None and isinstance(value, torch.Tensor)) or (
        numpy is not None and isinstance(value, numpy.ndarray) and value.flags.writeable
    )
