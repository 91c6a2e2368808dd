"""What a slice of a node costs: by the tables of the node's cloud, by the configuration, or by a stated default.

Never 0: a cluster of one's own would win against every cloud, also where it is the wrong choice.
"""

from __future__ import annotations

from dataclasses import dataclass

from perdure.controller.clouds.kubernetes.nodes.node_view import REGION, NodeView
from perdure.controller.clouds.kubernetes.nodes.slices import PodSize
from perdure.controller.clouds.kubernetes.settings import ContextSettings, Pricing
from perdure.recovery.market.view import Market

DEFAULT_CPU = 0.04  # USD per vCPU and hour
DEFAULT_MEMORY = 0.005  # USD per GB and hour
DEFAULT_ACCELERATOR = 2.0
DEFAULT_ACCELERATORS = {
    **{"T4": 0.35, "L4": 0.6, "A10": 0.7, "A10G": 0.8, "L40": 1.2, "L40S": 1.4, "P4": 0.3, "P100": 0.9, "V100": 2.0},
    **{"V100-32GB": 2.5, "A100": 2.6, "A100-80GB": 3.2, "H100": 6.5, "H100-MEGA": 6.8, "H200": 7.8, "B200": 14.0},
}
_SHARED_PART = 0.25  # of a GPU's price, for one that several pods share
_MIG_PARTS = 7  # a GPU has seven slices of compute
# The prefix of a node's providerID → the cloud whose tables have its prices.
_CLOUDS = {"aws": "aws", "gce": "gcp", "azure": "azure"}


@dataclass(frozen=True)
class SlicePrice:
    """USD per hour. `on_demand`: of the same slice of an on-demand node."""

    price: float
    on_demand: float


def price_of(size: PodSize, node: NodeView, settings: ContextSettings) -> SlicePrice:
    """The price of a slice of this node."""
    whole = _stated_price(node, settings) or (None if settings.pricing else _table_price(node))
    if whole is not None:
        share = _share(size, node)
        on_demand, spot = whole.on_demand * share, whole.price * share
    else:
        on_demand = list_price(size, settings.pricing)
        spot = on_demand * settings.spot_share
    on_demand = max(1e-6, round(on_demand, 6))
    if node.market is Market.ON_DEMAND:
        return SlicePrice(on_demand, on_demand)
    return SlicePrice(max(5e-7, min(round(spot, 6), 0.999 * on_demand)), on_demand)


def list_price(size: PodSize, pricing: Pricing) -> float:
    """The on-demand price by the configuration, and by defaults for what it does not name."""
    cpu = DEFAULT_CPU if pricing.cpu is None else pricing.cpu
    memory = DEFAULT_MEMORY if pricing.memory is None else pricing.memory
    accelerators = size.accelerators[1] * _accelerator_price(size.accelerators[0], pricing) if size.accelerators else 0
    return size.vcpus * cpu + size.memory_gib * memory + accelerators


def _accelerator_price(name: str, pricing: Pricing) -> float:
    known = DEFAULT_ACCELERATORS | pricing.accelerators
    if name in known:
        return known[name]
    whole, _, part = name.partition("-MIG-")
    if part:
        slices = int(part.partition("g")[0]) if part.partition("g")[0].isdecimal() else 1
        return known.get(whole, DEFAULT_ACCELERATOR) * slices / _MIG_PARTS
    if name.endswith("-SHARED"):
        return known.get(name.removesuffix("-SHARED"), DEFAULT_ACCELERATOR) * _SHARED_PART
    return DEFAULT_ACCELERATOR


def _stated_price(node: NodeView, settings: ContextSettings) -> SlicePrice | None:
    """The price of the whole node by `node_types`."""
    if node.price_per_hour is None:
        return None
    share = settings.spot_share if node.market is Market.SPOT else 1.0
    return SlicePrice(node.price_per_hour, node.price_per_hour / share)


def _table_price(node: NodeView) -> SlicePrice | None:
    """The price of the whole node by its cloud's built-in table; None for a type that the table lacks."""
    cloud, region = _CLOUDS.get(node.provider), node.labels.get(REGION, "")
    if cloud == "aws":
        from perdure.controller.clouds.aws.pricing import catalog as aws

        if (aws_type := aws.TYPES.get(node.instance_type)) is not None:
            on_demand = aws.on_demand_price(aws_type, region)
            return SlicePrice(on_demand * aws.SPOT_SHARE, on_demand)
    elif cloud == "gcp":
        from perdure.controller.clouds.gcp.pricing import catalog as gcp

        if (gcp_type := gcp.TYPES.get(node.instance_type)) is not None:
            return SlicePrice(gcp.spot_price(gcp_type, region), gcp.on_demand_price(gcp_type, region))
    elif cloud == "azure":
        from perdure.controller.clouds.azure.pricing import catalog as azure

        if (azure_type := azure.TYPES.get(node.instance_type)) is not None:
            return SlicePrice(azure.spot_price(azure_type, region), azure.on_demand_price(azure_type, region))
    return None


def _share(size: PodSize, node: NodeView) -> float:
    """The part of the node that the slice takes away from others."""
    if size.accelerators:
        total = sum(one.count for one in node.accelerators if one.name == size.accelerators[0])
        return min(1.0, size.accelerators[1] / max(1, total))
    return min(1.0, max(size.vcpus / max(node.vcpus, 0.1), size.memory_gib / max(node.memory_gib, 0.1)))
