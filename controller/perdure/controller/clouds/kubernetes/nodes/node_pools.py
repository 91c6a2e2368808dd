"""The nodes that Karpenter would add: its NodePools, as nodes that do not exist yet.

A pool's requirements select instance types of AWS, whose sizes and prices are those of the built-in table. Sources:
karpenter.sh/docs/concepts/nodepools, and karpenter.sh/docs/reference/instance-types for the labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from perdure.controller.clouds.aws.pricing import catalog
from perdure.controller.clouds.kubernetes.nodes import markets
from perdure.controller.clouds.kubernetes.nodes.accelerators import KARPENTER, NVIDIA, accelerators_of
from perdure.controller.clouds.kubernetes.nodes.markets import KARPENTER_SPOT, SpotMark
from perdure.controller.clouds.kubernetes.nodes.node_view import INSTANCE_TYPE, NO_ZONE, REGION, ZONE, NodeView
from perdure.controller.clouds.kubernetes.nodes.quantities import parse_quantity
from perdure.controller.clouds.pricing.region_catalog import InstanceType
from perdure.recovery.market.view import Market

PATH = "/apis/karpenter.sh/v1/nodepools"
CAPACITY = KARPENTER_SPOT.label
_AWS = "karpenter.k8s.aws"
# What the kubelet and the system keep for themselves: Karpenter's own estimate of the memory, and a little CPU.
_MEMORY_SHARE, _SYSTEM_GIB, _SYSTEM_VCPUS = 0.925, 0.5, 0.15
_NAME = re.compile(r"(?P<family>(?P<category>[a-z]+)(?P<generation>\d+)(?P<rest>[a-z0-9-]*))\.(?P<size>.+)")


def nodes_of(
    pools: Iterable[Mapping[str, Any]], nodes: Sequence[NodeView], known: Sequence[SpotMark]
) -> list[NodeView]:
    """A node for each instance type, zone and market that the pools allow. `nodes`: those that exist."""
    zones = sorted({node.zone for node in nodes if node.zone != NO_ZONE})
    return [node for pool in pools if _can_grow(pool) for node in _of_pool(pool, zones, known)]


def _can_grow(pool: Mapping[str, Any]) -> bool:
    spec, status = pool.get("spec") or {}, pool.get("status") or {}
    template = (spec.get("template") or {}).get("spec") or {}
    if (template.get("nodeClassRef") or {}).get("group", _AWS) != _AWS:
        return False
    if any(one.get("type") == "Ready" and one.get("status") == "False" for one in status.get("conditions") or ()):
        return False
    used = status.get("resources") or {}
    return all(
        parse_quantity(used.get(name, 0)) < parse_quantity(limit) for name, limit in (spec.get("limits") or {}).items()
    )


def _of_pool(pool: Mapping[str, Any], zones: Sequence[str], known: Sequence[SpotMark]) -> Iterator[NodeView]:
    template = pool["spec"].get("template") or {}
    spec = template.get("spec") or {}
    requirements = [one for one in spec.get("requirements") or () if isinstance(one, Mapping)]
    own_labels = (template.get("metadata") or {}).get("labels") or {}
    capacities = [one for one in ("spot", "on-demand") if _admits(requirements, {CAPACITY: one})]
    if not any(one.get("key") == CAPACITY for one in requirements):
        capacities = ["on-demand"]  # Karpenter's default
    stated = [value for one in requirements if one.get("key") == ZONE for value in one.get("values") or ()]
    allowed = [zone for zone in stated or zones if _admits(requirements, {ZONE: zone})] or [NO_ZONE]
    for kind in catalog.TYPES.values():
        labels = own_labels | _labels_of(kind)
        if not _admits(requirements, labels):
            continue
        for zone in allowed:
            for capacity in capacities:
                yield _view(pool, kind, zone, labels | {CAPACITY: capacity}, spec.get("taints") or (), known)


def _view(
    pool: Mapping[str, Any],
    kind: InstanceType,
    zone: str,
    labels: Mapping[str, str],
    taints: Iterable[Mapping[str, Any]],
    known: Sequence[SpotMark],
) -> NodeView:
    amounts: dict[str, Any] = {NVIDIA: str(int(kind.accelerators[1]))} if kind.accelerators else {}
    mark = markets.mark_of(labels, known)
    place = {} if zone == NO_ZONE else {ZONE: zone, REGION: re.sub(r"[a-z]$", "", zone)}
    return NodeView(
        name=f"nodepool/{pool['metadata']['name']}",
        labels={**labels, **place},
        zone=zone,
        market=Market.SPOT if mark else Market.ON_DEMAND,
        mark=mark,
        instance_type=kind.name,
        provider="aws",
        vcpus=kind.vcpus - _SYSTEM_VCPUS,
        memory_gib=kind.memory_gib * _MEMORY_SHARE - _SYSTEM_GIB,
        max_pods=110,
        accelerators=tuple(accelerators_of(labels, amounts)),
        allocatable=amounts,
        taints=tuple(taints),
        is_schedulable=True,
        is_ready=True,
        is_unlabelled=False,
        is_possible=True,
    )


def _labels_of(kind: InstanceType) -> dict[str, str]:
    """Karpenter's labels of an instance type, as far as its name and the table give them."""
    labels = {
        INSTANCE_TYPE: kind.name,
        "kubernetes.io/os": "linux",
        f"{_AWS}/instance-cpu": f"{kind.vcpus:g}",
        f"{_AWS}/instance-memory": f"{kind.memory_gib * 1024:g}",
    }
    if (match := _NAME.fullmatch(kind.name)) is not None:
        labels |= {f"{_AWS}/instance-{part}": match[part] for part in ("family", "category", "generation", "size")}
        labels["kubernetes.io/arch"] = "arm64" if "g" in match["rest"].partition("-")[0] else "amd64"
    if kind.accelerators:
        labels[KARPENTER] = kind.accelerators[0].partition("-")[0].lower()
        labels[f"{_AWS}/instance-gpu-count"] = f"{kind.accelerators[1]:g}"
    return labels


def _admits(requirements: Iterable[Mapping[str, Any]], labels: Mapping[str, str]) -> bool:
    """Whether labels satisfy the requirements on them. A requirement on another label is not judged."""
    return all(_is_met(one, labels.get(str(one.get("key")))) for one in requirements)


def _is_met(requirement: Mapping[str, Any], value: str | None) -> bool:
    values = [str(one) for one in requirement.get("values") or ()]
    gpu_labels = (KARPENTER, f"{_AWS}/instance-gpu-count")
    match requirement.get("operator"):
        case "Exists":
            return value is not None or requirement.get("key") not in gpu_labels
        case "DoesNotExist":
            return value is None
        case _ if value is None:
            return requirement.get("key") not in gpu_labels or requirement.get("operator") == "NotIn"
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Gt":
            return parse_quantity(value) > parse_quantity(values[0] if values else 0)
        case "Lt":
            return parse_quantity(value) < parse_quantity(values[0] if values else 0)
    return True
