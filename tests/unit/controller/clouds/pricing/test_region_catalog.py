"""Offers of small machines for controllers."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.aws.pricing import catalog as aws
from perdure.controller.clouds.azure.pricing import catalog as azure
from perdure.controller.clouds.gcp.pricing import catalog as gcp
from perdure.controller.clouds.pricing.region_catalog import host_offers
from perdure.recovery.market.view import Market

HOURS = 730


def test_host_offers__are_on_demand_and_of_known_types_alone() -> None:
    zones = {"us-east-1a": ["t3.small", "t9.huge"], "us-east-1b": []}
    (offer,) = host_offers("aws", "us-east-1", zones, aws.HOST_TYPES, aws.on_demand_price)
    assert (offer.zone, offer.instance_type, offer.market) == ("us-east-1a", "t3.small", Market.ON_DEMAND)
    assert (offer.price_per_hour, offer.vcpus, offer.memory_gib) == (0.0208, 2, 2)


@pytest.mark.parametrize("catalog", [aws, gcp, azure])
def test_host_types__are_no_types_of_tasks_and_cost_less_than_16_dollars_a_month(catalog: object) -> None:
    assert not catalog.HOST_TYPES.keys() & catalog.TYPES.keys()  # type: ignore[attr-defined]
    cheapest = min(catalog.HOST_TYPES.values(), key=lambda kind: kind.price_per_hour)  # type: ignore[attr-defined]
    assert cheapest.price_per_hour * HOURS < 16
    assert cheapest.memory_gib >= 2
