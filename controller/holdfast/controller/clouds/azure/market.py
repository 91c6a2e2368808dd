"""What a region sells the subscription, and for how much. How that is kept: `pricelist`."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from holdfast.controller.clouds.azure import catalog, faults, retail, skus
from holdfast.controller.clouds.azure.catalog import TYPES
from holdfast.controller.clouds.azure.connections import Connections
from holdfast.controller.clouds.azure.skus import Sku
from holdfast.controller.clouds.pricelist import Prices, Sold
from holdfast.recovery.market import Market

log = structlog.get_logger(__name__)


def crawl_region(connections: Connections, region: str) -> Sold:
    """What Azure tells; for what it does not, the table stands in: its prices, or that all zones sell all sizes."""
    told = _prices(connections, region)
    zones: Prices = {}
    for name, (places, takes_spot) in _places(connections, region).items():
        estimate = catalog.spot_price(TYPES[name], region)
        spot = told[Market.SPOT].get(name, estimate) if takes_spot else None
        for zone in places:
            zones.setdefault(zone, {})[name] = spot
    return Sold(zones, told[Market.ON_DEMAND])


def _places(connections: Connections, region: str) -> Mapping[str, tuple[tuple[str, ...], bool]]:
    """Size → (zones as offers name them, whether as spot)."""
    try:
        found = skus.of_region(connections.client(), region, TYPES)
    except Exception as error:
        if faults.code_of(error) != "AuthorizationFailed":
            raise
        # A role that was made for an older version does not allow this.
        log.warning("azure.skus_not_told", region=region, error=faults.classify(error).message)
        return {name: (catalog.zones_of(region), True) for name in TYPES}
    return {one.name: (_zones(region, one), one.takes_spot) for one in found.values() if one.may_be_had}


def _zones(region: str, sku: Sku) -> tuple[str, ...]:
    return tuple(f"{region}-{zone}" for zone in sku.zones) or (region,)


def _prices(connections: Connections, region: str) -> dict[Market, dict[str, float]]:
    try:
        return retail.of_region(connections, region, TYPES)
    except Exception as error:  # noqa: BLE001 - a list of prices that is away is no reason to buy nothing
        log.warning("azure.prices_not_told", region=region, error=faults.classify(error).message)
        return {Market.SPOT: {}, Market.ON_DEMAND: {}}
