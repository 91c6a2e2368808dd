"""The price of a slice of a node whose price the configuration states."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.kubernetes.nodes import offers
from perdure.controller.clouds.kubernetes.nodes.prices import price_of
from perdure.controller.clouds.kubernetes.nodes.slices import PodSize
from perdure.controller.clouds.kubernetes.settings import ContextSettings, NodeType


@pytest.mark.parametrize("is_spot", [False, True])
def test_node_type__with_a_price_is_sold_at_it(is_spot: bool) -> None:
    gpus = NodeType(vcpus=8, memory_gib=32, accelerators=("H100", 8), is_spot=is_spot, price_per_hour=40.0)
    settings = ContextSettings(node_types=(gpus,), spot_label=("pool", "spot"))
    (node,) = offers.possible_nodes(settings)
    price = price_of(PodSize(1, 4, ("H100", 2)), node, settings)
    assert price.price == 10.0, "a quarter of the node"
    assert price.on_demand == (10.0 / settings.spot_share if is_spot else 10.0)
