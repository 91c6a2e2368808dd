"""A node of a cluster, reduced to what offers, capacity and notices need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.controller.clouds.kubernetes.nodes import markets
from perdure.controller.clouds.kubernetes.nodes.accelerators import NodeAccelerator, accelerators_of, is_unlabelled
from perdure.controller.clouds.kubernetes.nodes.markets import SpotMark
from perdure.controller.clouds.kubernetes.nodes.quantities import parse_quantity
from perdure.recovery.market.view import Market

ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
NO_ZONE = "-"
_KEPT_METADATA = ("name", "uid", "resourceVersion", "labels")
GIB = 2.0**30
# Taints that every pod of an attempt tolerates, besides those of spot nodes.
GPU_TAINTS = ("nvidia.com/gpu", "amd.com/gpu", "google.com/tpu", "aws.amazon.com/neuron")
SOON_GONE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


@dataclass(frozen=True)
class NodeView:
    """A node. `accelerators`: usually one kind or none."""

    name: str
    labels: Mapping[str, str]
    zone: str
    market: Market
    mark: SpotMark | None  # of a spot node
    instance_type: str
    provider: str  # "aws", "gce", "azure" or ""
    vcpus: float  # allocatable, as all amounts
    memory_gib: float
    max_pods: int
    accelerators: tuple[NodeAccelerator, ...]
    allocatable: Mapping[str, Any]
    taints: tuple[Mapping[str, Any], ...]
    is_schedulable: bool
    is_ready: bool
    is_unlabelled: bool  # it has GPUs that no label names
    is_possible: bool = False  # it does not exist: an autoscaler would add it
    price_per_hour: float | None = None  # of the whole node, in USD, where the configuration states it


def reduce_node(node: dict[str, Any]) -> dict[str, Any]:
    """The part of a Node object that is kept in memory: without its images, annotations and managed fields."""
    metadata, spec, status = node.get("metadata") or {}, node.get("spec") or {}, node.get("status") or {}
    return {
        "metadata": {name: metadata[name] for name in _KEPT_METADATA if name in metadata},
        "spec": {name: spec[name] for name in ("taints", "unschedulable", "providerID") if name in spec},
        "status": {
            "allocatable": status.get("allocatable") or {},
            "conditions": [one for one in status.get("conditions") or () if one.get("type") == "Ready"],
        },
    }


def view_of(node: Mapping[str, Any], known: Sequence[SpotMark]) -> NodeView:
    """`known`: the marks of spot nodes."""
    labels = node["metadata"].get("labels") or {}
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    spec = node.get("spec") or {}
    ready = [one for one in (node.get("status") or {}).get("conditions") or () if one.get("type") == "Ready"]
    return NodeView(
        name=node["metadata"]["name"],
        labels=labels,
        zone=labels.get(ZONE) or NO_ZONE,
        market=markets.market_of(labels, known),
        mark=markets.mark_of(labels, known),
        instance_type=labels.get(INSTANCE_TYPE, ""),
        provider=str(spec.get("providerID") or "").partition("://")[0],
        vcpus=parse_quantity(allocatable.get("cpu", 0)),
        memory_gib=parse_quantity(allocatable.get("memory", 0)) / GIB,
        max_pods=int(parse_quantity(allocatable.get("pods", 110))),
        accelerators=tuple(accelerators_of(labels, allocatable)),
        allocatable=allocatable,
        taints=tuple(spec.get("taints") or ()),
        is_schedulable=not spec.get("unschedulable"),
        is_ready=not ready or ready[0].get("status") == "True",
        is_unlabelled=is_unlabelled(labels, allocatable),
    )


def is_usable(node: NodeView, known: Sequence[SpotMark]) -> bool:
    """Whether pods of an attempt can be placed on the node, as far as its taints and its state say."""
    tolerated = {*GPU_TAINTS, *(mark.label for mark in known)}
    blocking = (
        taint
        for taint in node.taints
        if taint.get("effect") in ("NoSchedule", "NoExecute") and taint.get("key") not in tolerated
    )
    return node.is_schedulable and node.is_ready and next(blocking, None) is None
