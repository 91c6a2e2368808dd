"""What a subscription may have, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fake_azure import FakeAzure
from fake_azure.retail import price
from fake_azure.sizes import SIZES, UNFIT
from perdure.controller.clock import ManualClock
from perdure.controller.clouds.azure.catalog import TYPES, on_demand_price, spot_price
from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.base import LaunchRequest
from perdure.recovery.market import Market

WAIT_S = 30.0


def test_prices_are_those_that_azure_lists_for_linux(azure: FakeAzure, cloud: AzureCloud) -> None:
    cloud.prices.refresh(WAIT_S)
    offers = cloud.offers()
    assert {o.zone for o in offers} == {f"{region}-{zone}" for region in azure.regions for zone in "123"}
    assert {o.instance_type for o in offers} == set(SIZES)
    for one in offers:
        assert one.price_per_hour == price(SIZES[one.instance_type], one.region, one.market)
    assert azure.calls["prices"] > 2 * len(azure.regions), "page by page"


def test_what_a_size_has_is_what_azure_says(cloud: AzureCloud) -> None:
    """Those of the table, and those that it lacks; none that the controller could not use."""
    cloud.prices.refresh(WAIT_S)
    for one in cloud.offers():
        kind = SIZES[one.instance_type]
        assert (one.vcpus, one.memory_gib, one.accelerators) == (kind.vcpus, kind.memory_gib, kind.accelerators)
    assert not {o.instance_type for o in cloud.offers()} & UNFIT.keys()


def test_a_size_that_the_table_lacks_can_be_bought_and_gets_the_image_for_its_gpus(
    azure: FakeAzure, cloud: AzureCloud, request_of: Callable[..., LaunchRequest]
) -> None:
    cloud.prices.refresh(WAIT_S)
    (offer,) = [
        o for o in cloud.offers() if (o.instance_type, o.zone, o.market) == ("Standard_NC6s_v3", "eastus-1", "spot")
    ]
    (machine,) = cloud.launch(replace(request_of(), offer=offer))
    assert machine.instance_type == "Standard_NC6s_v3"
    body = azure.body_of(machine.id)
    assert body["properties"]["storageProfile"]["imageReference"]["offer"] == "ubuntu-hpc"


def test_a_size_without_a_price_is_not_offered_unless_the_table_has_one(azure: FakeAzure, cloud: AzureCloud) -> None:
    azure.faults.prices_away = True
    cloud.prices.refresh(WAIT_S)
    assert {o.instance_type for o in cloud.offers()} == set(TYPES)


def test_what_the_subscription_may_not_have_is_not_offered(azure: FakeAzure, cloud: AzureCloud) -> None:
    azure.faults.closed = {("eastus", "Standard_F2s_v2"), ("northeurope-2", "Standard_F2s_v2")}
    cloud.prices.refresh(WAIT_S)
    zones = {o.zone for o in cloud.offers() if o.instance_type == "Standard_F2s_v2"}
    assert zones == {"northeurope-1", "northeurope-3"}


def test_a_new_daemon_finds_them_in_the_database(
    azure: FakeAzure, cloud: AzureCloud, new_cloud: Callable[..., AzureCloud]
) -> None:
    cloud.prices.refresh(WAIT_S)
    first = cloud.offers()
    calls = azure.calls.copy()
    assert new_cloud().offers() == first
    assert azure.calls == calls


def test_without_the_list_of_prices_the_table_stands_in(azure: FakeAzure, cloud: AzureCloud) -> None:
    azure.faults.prices_away = True
    cloud.prices.refresh(WAIT_S)
    for one in cloud.offers():
        estimate = spot_price if one.market is Market.SPOT else on_demand_price
        assert one.price_per_hour == estimate(TYPES[one.instance_type], one.region)


def test_a_role_that_does_not_tell_sizes_leaves_all_of_the_table(azure: FakeAzure, cloud: AzureCloud) -> None:
    azure.faults.deny = "AuthorizationFailed"
    cloud.prices.refresh(WAIT_S)
    assert {o.instance_type for o in cloud.offers()} == set(TYPES)


def test_the_age_of_prices_is_told(azure: FakeAzure, cloud: AzureCloud, clock: ManualClock) -> None:
    assert not any("min ago" in note for note in cloud.notes())
    cloud.prices.refresh(WAIT_S)
    clock.advance(300)
    assert cloud.notes()[-1] == "what is sold, and for how much, was asked 5 min ago"
