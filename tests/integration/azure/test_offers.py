"""Offers and prices fetched from Azure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.azure.pricing.catalog import TYPES, on_demand_price, spot_price
from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.runtime.clock import ManualClock
from perdure.recovery.market.view import Market
from support.fakes.azure import FakeAzure
from support.fakes.azure.retail import price
from support.fakes.azure.sizes import SIZES, UNFIT
from support.helpers.timing import scaled

pytestmark = pytest.mark.long

WAIT_S = 30.0


def test_offers__have_azures_linux_prices(azure: FakeAzure, cloud: AzureCloud) -> None:
    cloud.prices.refresh(scaled(WAIT_S))
    offers = cloud.prices.offers()
    assert {o.zone for o in offers} == {f"{region}-{zone}" for region in azure.regions for zone in "123"}
    assert {o.instance_type for o in offers} == set(SIZES)
    for one in offers:
        assert one.price_per_hour == price(SIZES[one.instance_type], one.region, one.market)
    assert azure.calls["prices"] > 2 * len(azure.regions), "page by page"


def test_offers__have_the_hardware_that_azure_reports(cloud: AzureCloud) -> None:
    """Sizes of the table and others, but none that the controller cannot use."""
    cloud.prices.refresh(scaled(WAIT_S))
    for one in cloud.prices.offers():
        kind = SIZES[one.instance_type]
        assert (one.vcpus, one.memory_gib, one.accelerators) == (kind.vcpus, kind.memory_gib, kind.accelerators)
    assert not {o.instance_type for o in cloud.prices.offers()} & UNFIT.keys()


def test_launch__of_a_size_that_the_table_lacks_uses_a_gpu_image(
    azure: FakeAzure, cloud: AzureCloud, request_of: Callable[..., LaunchRequest]
) -> None:
    cloud.prices.refresh(scaled(WAIT_S))
    (offer,) = [
        o
        for o in cloud.prices.offers()
        if (o.instance_type, o.zone, o.market) == ("Standard_NC6s_v3", "eastus-1", "spot")
    ]
    (machine,) = cloud.launch(replace(request_of(), offer=offer))
    assert machine.instance_type == "Standard_NC6s_v3"
    body = azure.body_of(machine.id)
    assert body["properties"]["storageProfile"]["imageReference"]["offer"] == "ubuntu-hpc"


def test_offers__omit_a_size_without_any_price(azure: FakeAzure, cloud: AzureCloud) -> None:
    azure.faults.prices_away = True
    cloud.prices.refresh(scaled(WAIT_S))
    assert {o.instance_type for o in cloud.prices.offers()} == set(TYPES)


def test_offers__omit_sizes_that_the_subscription_cannot_use(azure: FakeAzure, cloud: AzureCloud) -> None:
    azure.faults.closed = {("eastus", "Standard_F2s_v2"), ("northeurope-2", "Standard_F2s_v2")}
    cloud.prices.refresh(scaled(WAIT_S))
    zones = {o.zone for o in cloud.prices.offers() if o.instance_type == "Standard_F2s_v2"}
    assert zones == {"northeurope-1", "northeurope-3"}


def test_offers__are_loaded_from_the_database_by_a_new_daemon(
    azure: FakeAzure, cloud: AzureCloud, new_cloud: Callable[..., AzureCloud]
) -> None:
    cloud.prices.refresh(scaled(WAIT_S))
    first = cloud.prices.offers()
    calls = azure.calls.copy()
    assert new_cloud().prices.offers() == first
    assert azure.calls == calls


def test_offers__fall_back_to_table_prices_without_the_price_list(azure: FakeAzure, cloud: AzureCloud) -> None:
    azure.faults.prices_away = True
    cloud.prices.refresh(scaled(WAIT_S))
    for one in cloud.prices.offers():
        estimate = spot_price if one.market is Market.SPOT else on_demand_price
        assert one.price_per_hour == estimate(TYPES[one.instance_type], one.region)


def test_offers__fall_back_to_table_sizes_without_permission(azure: FakeAzure, cloud: AzureCloud) -> None:
    azure.faults.deny = "AuthorizationFailed"
    cloud.prices.refresh(scaled(WAIT_S))
    assert {o.instance_type for o in cloud.prices.offers()} == set(TYPES)


def test_notes__contain_the_age_of_prices(azure: FakeAzure, cloud: AzureCloud, clock: ManualClock) -> None:
    assert not any("min ago" in note for note in cloud.notes())
    assert "built-in table" in cloud.notes()[0]
    cloud.prices.refresh(scaled(WAIT_S))
    assert cloud.notes()[0].startswith("prices are Azure's retail prices")
    clock.advance(300)
    assert cloud.notes()[-1] == "offers and prices were fetched 5 min ago"
