"""A built-in table of VM sizes, regions and prices, used where Azure's own are unavailable (`region_prices`).

USD per hour, Linux, pay as you go, East US, from Azure's public price list at the end of 2025. Prices of other regions
are estimated by a factor, and spot prices by a share of these. All zones of a region have the same prices. Only x86-64,
for which the controller's rclone is built. Accelerators have SkyPilot's names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perdure.controller.clouds.pricing.region_catalog import InstanceType, RegionCatalog
from perdure.recovery.market.view import Offer

CATALOG_MONTH = "2025-12"

# Family → (GiB of memory per vCPU, USD per vCPU and hour), both the same for every size of a family.
FAMILIES = {
    "Standard_D{}s_v5": (4, 0.048),
    "Standard_D{}as_v5": (4, 0.043),
    "Standard_E{}s_v5": (8, 0.063),
    "Standard_E{}as_v5": (8, 0.0565),
    "Standard_F{}s_v2": (2, 0.0423),
}
SIZES = (2, 4, 8, 16, 32, 48, 64)

# (name, vCPUs, GiB of memory, accelerator, count, USD per hour)
ACCELERATED = (
    ("Standard_NC4as_T4_v3", 4, 28, "T4", 1, 0.526),
    ("Standard_NC8as_T4_v3", 8, 56, "T4", 1, 0.752),
    ("Standard_NC16as_T4_v3", 16, 110, "T4", 1, 1.204),
    ("Standard_NC64as_T4_v3", 64, 440, "T4", 4, 4.352),
    ("Standard_NV36ads_A10_v5", 36, 440, "A10", 1, 3.2),
    ("Standard_NV72ads_A10_v5", 72, 880, "A10", 2, 6.52),
    ("Standard_NC24ads_A100_v4", 24, 220, "A100-80GB", 1, 3.673),
    ("Standard_NC48ads_A100_v4", 48, 440, "A100-80GB", 2, 7.346),
    ("Standard_NC96ads_A100_v4", 96, 880, "A100-80GB", 4, 14.692),
    ("Standard_ND96asr_v4", 96, 900, "A100", 8, 27.197),
    ("Standard_ND96amsr_A100_v4", 96, 1900, "A100-80GB", 8, 32.77),
    ("Standard_NC40ads_H100_v5", 40, 320, "H100", 1, 6.98),
    ("Standard_NC80adis_H100_v5", 80, 640, "H100", 2, 13.96),
    ("Standard_ND96isr_H100_v5", 96, 1900, "H100", 8, 98.32),
    ("Standard_ND96isr_H200_v5", 96, 1850, "H200", 8, 84.8),
)

# Of controllers: sizes that save up CPU time while they idle.
HOST_TYPES = {
    kind.name: kind
    for kind in (
        InstanceType("Standard_B1ms", 1, 2, 0.0207),
        InstanceType("Standard_B2als_v2", 2, 4, 0.0374),
        InstanceType("Standard_B2ls_v2", 2, 4, 0.0416),
        InstanceType("Standard_B2s", 2, 4, 0.0416),
    )
}

# Spot price ÷ on-demand price: an estimate, by accelerator (None: no accelerator).
SPOT_SHARES = {None: 0.2, "T4": 0.2, "A10": 0.25, "A100": 0.35, "A100-80GB": 0.35, "H100": 0.4, "H200": 0.4}


@dataclass(frozen=True)
class Region:
    """A region of Azure."""

    factor: float  # on-demand price of Standard_D2s_v5 in the region ÷ that in East US
    zones: tuple[str, ...] = ("1", "2", "3")  # empty for a region without zones


REGIONS = {
    "eastus": Region(1.0),
    "eastus2": Region(1.0),
    "southcentralus": Region(1.198),
    "centralus": Region(1.146),
    "northcentralus": Region(1.0, zones=()),
    "westus": Region(1.167, zones=()),
    "westus2": Region(1.0),
    "westus3": Region(1.0),
    "canadacentral": Region(1.115),
    "brazilsouth": Region(1.594),
    "northeurope": Region(1.115),
    "westeurope": Region(1.198),
    "uksouth": Region(1.156),
    "francecentral": Region(1.167),
    "germanywestcentral": Region(1.198),
    "swedencentral": Region(1.063),
    "norwayeast": Region(1.229),
    "switzerlandnorth": Region(1.333),
    "centralindia": Region(1.052),
    "southeastasia": Region(1.25),
    "japaneast": Region(1.292),
    "koreacentral": Region(1.229),
    "australiaeast": Region(1.25),
}
OTHER_REGIONS = Region(1.3)


def _types() -> Iterator[InstanceType]:
    for family, (gib_per_vcpu, usd_per_vcpu) in FAMILIES.items():
        for vcpus in SIZES:
            yield InstanceType(family.format(vcpus), vcpus, vcpus * gib_per_vcpu, round(vcpus * usd_per_vcpu, 6))
    for name, vcpus, memory_gib, accelerator, count, price in ACCELERATED:
        yield InstanceType(name, vcpus, memory_gib, price, (accelerator, float(count)))


TYPES: dict[str, InstanceType] = {kind.name: kind for kind in _types()}


def on_demand_price(kind: InstanceType, region: str) -> float:
    """USD per hour; an estimate outside East US."""
    return round(kind.price_per_hour * REGIONS.get(region, OTHER_REGIONS).factor, 6)


def spot_price(kind: InstanceType, region: str) -> float:
    """USD per hour; an estimate."""
    share = SPOT_SHARES[kind.accelerators[0] if kind.accelerators else None]
    return round(on_demand_price(kind, region) * share, 6)


def fallback(region: str) -> RegionCatalog:
    """A catalog of the region without calling Azure: every zone sells every size."""
    return RegionCatalog(
        {zone: {name: spot_price(kind, region) for name, kind in TYPES.items()} for zone in zones_of(region)}
    )


def zones_of(region: str) -> tuple[str, ...]:
    """As offers name them: `eastus-1`; the region's own name where it has no zones."""
    return tuple(f"{region}-{zone}" for zone in REGIONS.get(region, OTHER_REGIONS).zones) or (region,)


def zone_number(offer: Offer) -> str | None:
    """Azure's name of the offer's zone within its region; None if the region has no zones."""
    return offer.zone.removeprefix(f"{offer.region}-") if offer.zone != offer.region else None
