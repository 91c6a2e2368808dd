"""What a user should know of launches in a cloud before money is spent: fields without effect, and slow networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

# Machines with eight of these have a network for them alone, several times as fast as Ethernet.
_NETWORKED = frozenset({"A100", "A100-80GB", "H100", "H100-MEGA", "H200", "B200"})
_GPUS_OF_WHOLE_MACHINE = 8


@runtime_checkable
class WarnsOfLaunches(Protocol):
    """A cloud that knows of options which do not do there what a user may expect."""

    def launch_warnings(
        self, options: Mapping[str, Any], accelerators: tuple[str, float] | None, num_nodes: int
    ) -> Sequence[str]:
        """Warnings about `num_nodes` machines with these options of a launch. Does not call the cloud."""
        ...


def gang_on_ethernet(accelerators: tuple[str, float] | None, num_nodes: int, cloud: str, why: str) -> list[str]:
    """A warning if nodes of this task would have a faster network elsewhere than in `cloud`. `why`: ends it."""
    if num_nodes < 2 or accelerators is None:
        return []
    name, count = accelerators
    if name not in _NETWORKED or count < _GPUS_OF_WHOLE_MACHINE:
        return []
    return [f"on {cloud}, the {num_nodes} nodes with {count:g} x {name} talk TCP over Ethernet, {why}"]
