"""Containers of other libraries that are registered as trees with JAX or PyTorch: Flax's `State` and `FrozenDict`,
dataclasses, caches of Transformers.

Only their content is saved, with the names of their parts. Such an object also has content that is no data (a function,
a configuration), so it comes back only into an object of the program that has that already: `load(into=…)`.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perdure.checkpoint.errors import CheckpointError


@dataclass(frozen=True)
class SavedNode:
    """What a checkpoint has of such a container."""

    kind: str  # its class: module and qualified name, with a colon between
    children: Mapping[str, Any]  # place in the container → content


@dataclass(frozen=True)
class Node:
    """A container of the program, one level of it."""

    kind: str
    children: Mapping[str, Any]
    rebuild: Callable[[list[Any]], Any]  # a container like it, with these children in the order of `children`


def as_node(value: Any) -> Node | None:
    """`value` as a node, or None if no framework that the program has imported has it registered."""
    kind = f"{type(value).__module__}:{type(value).__qualname__}"
    for flatten in (_flatten_with_jax, _flatten_with_torch):
        flat = flatten(value)
        if flat is not None:
            children, rebuild = flat
            return Node(kind, children, rebuild)
    return None


def require_no_nodes(state: Any, place: str = "state") -> None:
    """Raise CheckpointError when there is a SavedNode in a loaded state, which nobody could use."""
    if isinstance(state, SavedNode):
        raise CheckpointError(
            f"{place}: the checkpoint holds a {state.kind.partition(':')[2]}, whose content alone does not make one: "
            "load with `into`, a state in which that place has such an object"
        )
    if isinstance(state, dict):
        for key, value in state.items():
            require_no_nodes(value, f"{place}[{key!r}]")
    elif isinstance(state, (list, tuple, deque)):
        for index, value in enumerate(state):
            require_no_nodes(value, f"{place}[{index}]")


_Flat = tuple[dict[str, Any], Callable[[list[Any]], Any]]


def _flatten_with_jax(value: Any) -> _Flat | None:
    jax = sys.modules.get("jax")
    if jax is None:
        return None
    pairs, tree = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda one: one is not value)
    if len(pairs) == 1 and pairs[0][1] is value:
        return None
    return {jax.tree_util.keystr(path): child for path, child in pairs}, tree.unflatten


def _flatten_with_torch(value: Any) -> _Flat | None:
    pytree = sys.modules.get("torch.utils._pytree")
    if pytree is None or type(value) not in pytree.SUPPORTED_NODES:
        return None
    children, tree = pytree.tree_flatten(value, is_leaf=lambda one: one is not value)
    named = {f"[{index}]": child for index, child in enumerate(children)}
    return named, lambda restored: pytree.tree_unflatten(restored, tree)
