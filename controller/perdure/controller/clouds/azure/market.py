"""What a region sells the subscription, what that is, and for how much. How it is kept: `pricelist`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import structlog

from perdure.controller.clouds.azure import catalog, faults, retail, sizes, skus
from perdure.controller.clouds.azure.catalog import TYPES
from perdure.controller.clouds.azure.connections import Connections
from perdure.controller.clouds.azure.skus import Sku
from perdure.controller.clouds.sold import Prices, Sold
from perdure.recovery.market import Market

log = structlog.get_logger(__name__)


def crawl_region(connections: Connections, region: str) -> Sold:
    """What Azure tells; for what it does not, the table stands in: its prices, or that all zones sell all sizes."""
    found = _skus(connections, region)
    if found is None:
        table, told = catalog.sold(region), _prices(connections, region, TYPES)
        spot = {
            zone: {name: told[Market.SPOT].get(name, guess) for name, guess in prices.items()}
            for zone, prices in table.zones.items()
        }
        return Sold(spot, told[Market.ON_DEMAND])
    told = _prices(connections, region, found)
    zones: Prices = {}
    for one in found.values():
        for zone in _zones(region, one):
            zones.setdefault(zone, {})[one.name] = _spot_price(one, region, told[Market.SPOT])
    shapes = {one.name: one.shape for one in found.values() if one.shape is not None}
    return Sold(zones, told[Market.ON_DEMAND], shapes)


def _skus(connections: Connections, region: str) -> Mapping[str, Sku] | None:
    """Those that may be had, and are either in the table or said to be what they are; None if nobody may ask."""
    try:
        found = skus.of_region(connections.client(), region, sizes.is_offered)
    except Exception as error:
        if faults.code_of(error) != "AuthorizationFailed":
            raise
        # A role that was made for an older version does not allow this.
        log.warning("azure.skus_not_told", region=region, error=faults.classify(error).message)
        return None
    return {name: one for name, one in found.items() if one.may_be_had and (one.shape is not None or name in TYPES)}


def _spot_price(sku: Sku, region: str, told: Mapping[str, float]) -> float | None:
    """None: it is not sold as spot, or nobody says for how much."""
    if not sku.takes_spot:
        return None
    kind = TYPES.get(sku.name)
    return told.get(sku.name, catalog.spot_price(kind, region) if kind else None)


def _zones(region: str, sku: Sku) -> tuple[str, ...]:
    return tuple(f"{region}-{zone}" for zone in sku.zones) or (region,)


def _prices(connections: Connections, region: str, names: Collection[str]) -> dict[Market, dict[str, float]]:
    try:
        return retail.of_region(connections, region, names)
    except Exception as error:  # noqa: BLE001 - a list of prices that is away is no reason to buy nothing
        log.warning("azure.prices_not_told", region=region, error=faults.classify(error).message)
        return {Market.SPOT: {}, Market.ON_DEMAND: {}}
