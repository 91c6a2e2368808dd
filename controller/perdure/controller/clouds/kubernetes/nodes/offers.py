"""The offers of a context: one for each zone, slice and market, from its nodes and from those that it could add."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from perdure.controller.clouds.kubernetes.nodes import markets, prices, slices
from perdure.controller.clouds.kubernetes.nodes.accelerators import GPU_RESOURCES, NVIDIA, NodeAccelerator
from perdure.controller.clouds.kubernetes.nodes.markets import SpotMark
from perdure.controller.clouds.kubernetes.nodes.node_view import NO_ZONE, NodeView, is_usable
from perdure.controller.clouds.kubernetes.nodes.slices import PodSize
from perdure.controller.clouds.kubernetes.settings import ContextSettings, NodeType
from perdure.recovery.market.view import Market, Offer

NODE_TYPES = "node_types["


def offers_of(cloud: str, context: str, nodes: Sequence[NodeView], settings: ContextSettings) -> list[Offer]:
    """Offers differ in price only if their nodes do: the cheapest counts. `nodes`: existing and possible ones."""
    known = markets.marks(settings.spot_label)
    everything = [node for node in nodes if is_allowed(node, settings) and is_usable(node, known)]
    best: dict[object, Offer] = {}
    for node in everything:
        for size in slices.sizes_of(node.vcpus, node.memory_gib, node.accelerators):
            offer = _offer(cloud, context, node, size, settings)
            if offer.key not in best or offer.price_per_hour < best[offer.key].price_per_hour:
                best[offer.key] = offer
    return list(_with_on_demand_prices(best.values()))


def is_allowed(node: NodeView, settings: ContextSettings) -> bool:
    """Whether `allowed_nodes` admits the node. One of `node_types` is named by the same configuration."""
    if node.name.startswith(NODE_TYPES):
        return True
    if settings.allowed_names and node.name not in settings.allowed_names:
        return False
    return not settings.allowed_labels or any(
        all(node.labels.get(name) == value for name, value in wanted.items()) for wanted in settings.allowed_labels
    )


def has_slice(node: NodeView, size: PodSize) -> bool:
    """Whether an empty node of this kind has room for the slice. A slice without accelerators needs a node without."""
    if size.vcpus > node.vcpus or size.memory_gib > node.memory_gib:
        return False
    if size.accelerators is None:
        return not node.accelerators
    return any(one.name == size.accelerators[0] and one.count >= size.accelerators[1] for one in node.accelerators)


def possible_nodes(settings: ContextSettings) -> list[NodeView]:
    """The nodes of `node_types`, as if they existed."""
    return [
        _possible(one, zone, settings, index)
        for index, one in enumerate(settings.node_types)
        for zone in one.zones or (NO_ZONE,)
    ]


def _possible(one: NodeType, zone: str, settings: ContextSettings, index: int) -> NodeView:
    known = markets.marks(settings.spot_label)
    mark = markets.mark_of(one.labels, known) or (known[-1] if one.is_spot else None)
    accelerators: tuple[NodeAccelerator, ...] = ()
    if one.accelerators:
        label = next(((key, value) for key, value in one.labels.items() if key not in _spot_keys(known)), None)
        accelerators = (NodeAccelerator(*one.accelerators, NVIDIA, label),)
    amounts = {accelerator.resource: accelerator.count for accelerator in accelerators}
    return NodeView(
        name=f"{NODE_TYPES}{index}]",
        labels=one.labels,
        zone=zone,
        market=Market.SPOT if mark else Market.ON_DEMAND,
        mark=mark,
        instance_type="",
        provider="",
        # The sizes that a user writes are those of whole nodes, before the system's share.
        vcpus=one.vcpus + slices.RESERVED_VCPUS,
        memory_gib=one.memory_gib + slices.RESERVED_GIB,
        max_pods=110,
        accelerators=accelerators,
        allocatable=amounts,
        taints=(),
        is_schedulable=True,
        is_ready=True,
        is_unlabelled=False,
        is_possible=True,
        price_per_hour=one.price_per_hour,
    )


def _spot_keys(known: Sequence[SpotMark]) -> set[str]:
    return {mark.label for mark in known}


def resource_name(accelerator: str, nodes: Iterable[NodeView]) -> str:
    """The resource by which pods request the accelerator."""
    known = (one.resource for node in nodes for one in node.accelerators if one.name == accelerator)
    return next(known, GPU_RESOURCES[0])


def _offer(cloud: str, context: str, node: NodeView, size: PodSize, settings: ContextSettings) -> Offer:
    price = prices.price_of(size, node, settings)
    accelerators = (size.accelerators[0], float(size.accelerators[1])) if size.accelerators else None
    return Offer(
        cloud,
        context,
        node.zone,
        size.name,
        node.market,
        price.price,
        price.on_demand,
        size.vcpus,
        size.memory_gib,
        accelerators,
    )


def _with_on_demand_prices(offers: Iterable[Offer]) -> Iterator[Offer]:
    """Each spot offer with the price of the on-demand offer of the same slice, if there is one."""
    listed = list(offers)
    on_demand = {(o.zone, o.instance_type): o.price_per_hour for o in listed if o.market is Market.ON_DEMAND}
    for offer in listed:
        price = on_demand.get((offer.zone, offer.instance_type), offer.on_demand_price_per_hour)
        if offer.market is Market.SPOT and price <= offer.price_per_hour:
            price = offer.on_demand_price_per_hour
        yield replace(offer, on_demand_price_per_hour=price)
