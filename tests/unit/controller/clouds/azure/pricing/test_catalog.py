"""The built-in table of sizes, regions and prices."""

from __future__ import annotations

from perdure.controller.clouds.azure.pricing.catalog import TYPES, on_demand_price, spot_price, zone_number, zones_of
from perdure.recovery.market.view import Market, Offer


def test_types__have_families_and_accelerators() -> None:
    assert (TYPES["Standard_D4s_v5"].vcpus, TYPES["Standard_D4s_v5"].memory_gib) == (4, 16)
    assert TYPES["Standard_ND96isr_H100_v5"].accelerators == ("H100", 8.0)
    assert len(TYPES) == 50


def test_on_demand_price__of_an_unlisted_region_is_high() -> None:
    kind = TYPES["Standard_NC4as_T4_v3"]
    assert on_demand_price(kind, "eastus") == 0.526
    assert on_demand_price(kind, "newregion") == 0.6838
    assert spot_price(kind, "newregion") < on_demand_price(kind, "newregion")


def test_zones_of__a_region_without_zones_is_one() -> None:
    assert zones_of("eastus") == ("eastus-1", "eastus-2", "eastus-3")
    assert zones_of("westus") == ("westus",)
    numbers = [
        zone_number(Offer("azure", zone.partition("-")[0], zone, "Standard_F2s_v2", Market.SPOT, 0.1, 0.2, 2, 4))
        for zone in ("eastus-2", "westus")
    ]
    assert numbers == ["2", None]
