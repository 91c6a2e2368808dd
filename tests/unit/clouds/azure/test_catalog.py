"""The table of sizes, regions and prices."""

from __future__ import annotations

from holdfast.controller.clouds.azure.catalog import TYPES, offers, on_demand_price, spot_price, zone_number
from holdfast.recovery.market import Market


def test_families_and_accelerators() -> None:
    assert (TYPES["Standard_D4s_v5"].vcpus, TYPES["Standard_D4s_v5"].memory_gib) == (4, 16)
    assert TYPES["Standard_ND96isr_H100_v5"].accelerators == ("H100", 8.0)
    assert len(TYPES) == 50


def test_a_region_that_is_not_known_counts_as_dear() -> None:
    kind = TYPES["Standard_NC4as_T4_v3"]
    assert on_demand_price(kind, "eastus") == 0.526
    assert on_demand_price(kind, "newregion") == 0.6838
    assert spot_price(kind, "newregion") < on_demand_price(kind, "newregion")


def test_offers_are_by_zone_and_a_region_without_zones_is_one() -> None:
    found = list(offers("azure", ["eastus", "westus"]))
    assert len(found) == len(TYPES) * (3 + 1) * 2
    assert {o.zone for o in found} == {"eastus-1", "eastus-2", "eastus-3", "westus"}
    assert {(o.zone, zone_number(o)) for o in found if o.zone in ("eastus-2", "westus")} == {
        ("eastus-2", "2"),
        ("westus", None),
    }
    h100 = next(o for o in found if o.instance_type == "Standard_NC40ads_H100_v5" and o.market is Market.SPOT)
    assert (h100.accelerators, h100.on_demand_price_per_hour, h100.price_per_hour) == (("H100", 1.0), 6.98, 2.792)
