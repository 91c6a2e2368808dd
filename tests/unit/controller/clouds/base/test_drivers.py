"""A machine whose GPUs have no driver is not offered."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.aws.pricing import catalog as aws_catalog
from perdure.controller.clouds.aws.settings import AwsSettings
from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.azure.pricing import catalog as azure_catalog
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.base.drivers import DRIVERS, NEEDS_PROPRIETARY_MODULES
from perdure.controller.clouds.gcp.cloud import GcpCloud
from perdure.controller.clouds.gcp.pricing.machine_families import GPUS
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.clouds.pricing.cache import InMemoryOfferCache
from perdure.controller.runtime.clock import ManualClock
from perdure.recovery.market.view import Market, Offer

SUBSCRIPTION = "0b1f6471-1bf0-4dda-aec3-111122223333"


class Prices:
    """Every GPU of every cloud, for sale in one region."""

    def __init__(self, region: str) -> None:
        names = sorted(NEEDS_PROPRIETARY_MODULES.union(*DRIVERS.values(), {"A10"}))
        self._offers = tuple(Offer("c", region, "z", name, Market.SPOT, 1, 1, 8, 64, (name, 1.0)) for name in names)

    def offers(self) -> tuple[Offer, ...]:
        return self._offers


def gpus(cloud: str, **more: Any) -> set[str]:
    """Which of them the cloud offers."""
    clock = ManualClock()
    cache = InMemoryOfferCache(clock)
    built: Any
    match cloud:
        case "aws":
            built = AwsCloud(cache, AwsSettings(regions=("us-east-1",), **more), clock)
        case "gcp":
            built = GcpCloud(cache, GcpSettings(project="p", regions=("us-central1",), **more), clock)
        case _:
            settings = AzureSettings(subscription=SUBSCRIPTION, regions=("eastus",), **more)
            built = AzureCloud(cache, settings, clock)
    built.prices = Prices(built.settings.regions[0])
    assert built.offers() is built.offers()
    return {offer.accelerators[0] for offer in built.offers() if offer.accelerators}


@pytest.mark.parametrize(
    ("cloud", "missing"),
    [("aws", {"V100", "V100-32GB"}), ("gcp", {"V100", "P100", "P4"}), ("azure", {"A10", "V100"})],
)
def test_gpu__without_a_driver_is_not_offered(cloud: str, missing: set[str]) -> None:
    offered = gpus(cloud)
    assert not offered & missing
    assert {"T4", "A100-80GB"} <= offered


@pytest.mark.parametrize(("cloud", "other"), [("gcp", "us-east4"), ("azure", "westus3")])
def test_region__without_a_subnet_is_not_offered_where_subnets_are_named(cloud: str, other: str) -> None:
    """In another network, a machine may not reach the controller: it would be paid for, and do nothing."""
    region = {"gcp": "us-central1", "azure": "eastus"}[cloud]
    assert gpus(cloud, subnets={region: "/subscriptions/s"})
    assert not gpus(cloud, subnets={other: "/subscriptions/s"})


def test_gpu__is_offered_where_the_user_names_the_image() -> None:
    assert "V100" in gpus("aws", images={"us-east-1": "ami-0123456789abcdef0"})
    assert "V100" not in gpus("aws", images={"us-west-2": "ami-0123456789abcdef0"})
    assert "V100" in gpus("gcp", image="projects/p/global/images/family/f")
    assert "A10" in gpus("azure", images={"eastus": "Canonical:ubuntu-24_04-lts:server:latest"})


def test_zone__without_a_subnet_is_not_offered_once_one_is_named() -> None:
    """Its machines would be in the default VPC, and may not reach a controller in the named one."""
    assert gpus("aws", subnets={"z": "subnet-1"}) == gpus("aws")
    assert gpus("aws", subnets={"us-east-1b": "subnet-1"}) == set()


def test_table__knows_every_gpu_that_a_cloud_sells() -> None:
    sold = {
        "aws": {kind.accelerators[0] for kind in aws_catalog.TYPES.values() if kind.accelerators},
        "gcp": {gpu.name for gpu in GPUS.values()},
        "azure": {kind.accelerators[0] for kind in azure_catalog.TYPES.values() if kind.accelerators} - {"A10"},
    }
    for cloud, names in sold.items():
        assert names - NEEDS_PROPRIETARY_MODULES == DRIVERS[cloud]
    assert not NEEDS_PROPRIETARY_MODULES & frozenset().union(*DRIVERS.values())
