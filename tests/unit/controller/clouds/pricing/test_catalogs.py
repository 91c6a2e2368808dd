"""The properties of every cloud's built-in table."""

from __future__ import annotations

from types import ModuleType

import pytest

from perdure.controller.clouds.aws.pricing import catalog as aws
from perdure.controller.clouds.azure.pricing import catalog as azure
from perdure.controller.clouds.gcp.pricing import catalog as gcp
from perdure.sdk.spec.accelerators import choices, parse

CATALOGS = {"aws": aws, "azure": azure, "gcp": gcp}
SPOT = {"azure": azure.spot_price, "gcp": gcp.spot_price}  # EC2 publishes its own


def listed(catalog: ModuleType) -> list[str]:
    """The names in the order of the source, where a mapping cannot hide a duplicate."""
    return [kind.name for kind in catalog._types()]


def test_types__are_sufficient() -> None:
    kinds = [kind for catalog in CATALOGS.values() for kind in catalog.TYPES.values()]
    assert len(kinds) >= 200
    assert sum(kind.accelerators is not None for kind in kinds) >= 80


@pytest.mark.parametrize("cloud", CATALOGS)
def test_types__are_unique_and_plausible(cloud: str) -> None:
    catalog = CATALOGS[cloud]
    assert len(listed(catalog)) == len(set(listed(catalog))) == len(catalog.TYPES)
    for kind in catalog.TYPES.values():
        assert 2 <= kind.vcpus <= 256, kind
        assert 0.9 <= kind.memory_gib / kind.vcpus <= 20, kind
        assert 0 < kind.price_per_hour < 200, kind
        if kind.accelerators is not None:
            name, count = kind.accelerators
            assert choices(parse(name.lower())) == ((name, 1),), "as tasks spell it"
            assert count in (1, 2, 4, 8, 16), kind


@pytest.mark.parametrize("cloud", CATALOGS)
def test_types__with_more_accelerators_cost_more(cloud: str) -> None:
    kinds = [kind for kind in CATALOGS[cloud].TYPES.values() if kind.accelerators]
    for name in {kind.accelerators[0] for kind in kinds if kind.accelerators}:
        least: dict[float, float] = {}
        for kind in kinds:
            if kind.accelerators and kind.accelerators[0] == name:
                count = kind.accelerators[1]
                least[count] = min(kind.price_per_hour, least.get(count, kind.price_per_hour))
        prices = [least[count] for count in sorted(least)]
        assert prices == sorted(prices), (name, least)


@pytest.mark.parametrize("cloud", SPOT)
def test_fallback__has_spot_prices_below_on_demand(cloud: str) -> None:
    catalog = CATALOGS[cloud]
    for region in [*catalog.REGIONS] if cloud == "azure" else [*catalog.REGION_FACTORS]:
        for kind in catalog.TYPES.values():
            assert 0 < SPOT[cloud](kind, region) < catalog.on_demand_price(kind, region), (kind.name, region)
