"""Offers of an Azure region: the sizes available to the subscription, with their hardware and prices."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import structlog

from perdure.controller.clouds.azure import faults
from perdure.controller.clouds.azure.pricing import catalog, retail_prices, sizes, skus
from perdure.controller.clouds.azure.pricing.catalog import TYPES
from perdure.controller.clouds.azure.pricing.skus import Sku
from perdure.controller.clouds.azure.sdk.connections import AzureConnections
from perdure.controller.clouds.pricing.region_catalog import Prices, RegionCatalog
from perdure.recovery.market.view import Market

log = structlog.get_logger(__name__)


def fetch(connections: AzureConnections, region: str) -> RegionCatalog:
    """What the region sells. The built-in table supplies missing prices, and the sizes if Azure does not list them."""
    offered = _skus(connections, region)
    if offered is None:
        table, prices = catalog.fallback(region), _prices(connections, region, TYPES)
        spot = {
            zone: {name: prices[Market.SPOT].get(name, estimate) for name, estimate in sizes_of_zone.items()}
            for zone, sizes_of_zone in table.zones.items()
        }
        return RegionCatalog(spot, prices[Market.ON_DEMAND])
    prices = _prices(connections, region, offered)
    zones: Prices = {}
    for sku in offered.values():
        for zone in zones_of(region, sku):
            zones.setdefault(zone, {})[sku.name] = _spot_price(sku, region, prices[Market.SPOT])
    shapes = {sku.name: sku.shape for sku in offered.values() if sku.shape is not None}
    return RegionCatalog(zones, prices[Market.ON_DEMAND], shapes)


def _skus(connections: AzureConnections, region: str) -> Mapping[str, Sku] | None:
    """Available sizes that are in the built-in table or have known hardware; None without permission to list sizes."""
    try:
        listed = skus.fetch(connections.client(), region, sizes.is_offered)
    except Exception as error:
        if faults.code_of(error) != "AuthorizationFailed":
            raise
        # The role was created by an older version.
        log.warning("azure.skus_unavailable", region=region, error=faults.classify(error).message)
        return None
    return {name: sku for name, sku in listed.items() if sku.is_available and (sku.shape is not None or name in TYPES)}


def _spot_price(sku: Sku, region: str, prices: Mapping[str, float]) -> float | None:
    """None if the size is not sold as spot, or its price is unknown."""
    if not sku.supports_spot:
        return None
    table_type = TYPES.get(sku.name)
    return prices.get(sku.name, catalog.spot_price(table_type, region) if table_type else None)


def zones_of(region: str, sku: Sku) -> tuple[str, ...]:
    """The zones that sell a size, as offers name them."""
    return tuple(f"{region}-{zone}" for zone in sku.zones) or (region,)


def _prices(connections: AzureConnections, region: str, names: Collection[str]) -> dict[Market, dict[str, float]]:
    try:
        return retail_prices.fetch(connections, region, names)
    except Exception as error:  # noqa: BLE001 - launches continue without a price list
        log.warning("azure.prices_unavailable", region=region, error=faults.classify(error).message)
        return {Market.SPOT: {}, Market.ON_DEMAND: {}}
