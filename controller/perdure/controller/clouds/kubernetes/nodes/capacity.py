"""Whether a cluster has room for the pods of an attempt now, so that a full cluster refuses at once.

An estimate by first fit: pods that are being deleted count as gone, and so do the earlier attempts of the same task,
which end as soon as the new one is ready. The scheduler decides in the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.controller.clouds.kubernetes.nodes.node_view import NodeView
from perdure.controller.clouds.kubernetes.nodes.quantities import parse_quantity

_PODS = "pods"
_TOLERANCE = 1e-6


@dataclass
class FreeAmounts:
    """What is left of one node."""

    amounts: dict[str, float] = field(default_factory=dict)

    def take(self, requests: Mapping[str, float]) -> bool:
        """Subtract `requests` if they fit."""
        if any(amount > self.amounts.get(name, 0.0) + _TOLERANCE for name, amount in requests.items()):
            return False
        for name, amount in requests.items():
            self.amounts[name] -= amount
        return True

    def force(self, requests: Mapping[str, float]) -> None:
        for name, amount in requests.items():
            self.amounts[name] = self.amounts.get(name, 0.0) - amount


def count_that_fit(
    nodes: Sequence[NodeView], pods: Iterable[Mapping[str, Any]], requests: Mapping[str, float], wanted: int
) -> int:
    """How many of `wanted` pods with these requests the nodes have room for, beside `pods`."""
    free = {node.name: FreeAmounts(_allocatable(node)) for node in nodes}
    waiting: list[dict[str, float]] = []
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName")
        if node in free:
            free[node].force(requests_of(pod))
        elif not node:
            waiting.append(requests_of(pod))
    for one in waiting:  # they are first in line
        any(amounts.take(one) for amounts in free.values())
    demand = {**requests, _PODS: 1.0}
    fitting = 0
    while fitting < wanted and any(amounts.take(demand) for amounts in free.values()):
        fitting += 1
    return fitting


def occupies(pod: Mapping[str, Any]) -> bool:
    """Whether the pod holds resources of its node, and will for a while."""
    is_over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return not is_over and "deletionTimestamp" not in pod["metadata"]


def reduce_pod(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a Pod object that says what it takes, and whose it is."""
    spec = pod.get("spec") or {}
    containers = {
        kind: [{"resources": one.get("resources") or {}} for one in spec.get(kind) or ()]
        for kind in ("containers", "initContainers")
    }
    return {
        "metadata": {name: pod["metadata"].get(name) for name in ("name", "uid", "labels")},
        "spec": {"nodeName": spec.get("nodeName"), **containers},
    }


def requests_of(pod: Mapping[str, Any]) -> dict[str, float]:
    """What the pod requests: the sum over its containers, or the most that an init container needs."""
    total: dict[str, float] = {_PODS: 1.0}
    spec = pod.get("spec") or {}
    for container in spec.get("containers") or ():
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = total.get(name, 0.0) + parse_quantity(amount)
    for container in spec.get("initContainers") or ():
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = max(total.get(name, 0.0), parse_quantity(amount))
    return total


def _allocatable(node: NodeView) -> dict[str, float]:
    return {name: parse_quantity(amount) for name, amount in node.allocatable.items()} | {_PODS: float(node.max_pods)}
