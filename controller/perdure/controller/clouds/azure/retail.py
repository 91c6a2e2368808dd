"""Azure's own retail prices, which anybody may ask for: USD an hour, without what a customer has agreed upon.

learn.microsoft.com/rest/api/cost-management/retail-prices/azure-retail-prices
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from perdure.controller.clouds.azure.connections import Connections
from perdure.recovery.market import Market

PATH = "/api/retail/prices"
VERSION = "2023-01-01-preview"
SIZES_AT_ONCE = 25  # a filter that is too long is refused
MOST_PAGES = 50


def of_region(connections: Connections, region: str, sizes: Collection[str]) -> dict[Market, dict[str, float]]:
    """Market → size → price, of those that are told. Raises what azure-core raises."""
    names = sorted(sizes)
    portions = [names[start : start + SIZES_AT_ONCE] for start in range(0, len(names), SIZES_AT_ONCE)]
    return read(item for portion in portions for item in _items(connections, region, portion))


def read(items: Iterable[Mapping[str, Any]]) -> dict[Market, dict[str, float]]:
    """Of what is listed, machines with Linux that are billed by the hour; nothing for Windows or Cloud Services,
    or of the low priority that was there before spot. Where a size is listed twice, its primary meter counts."""
    found: dict[Market, dict[str, float]] = {Market.SPOT: {}, Market.ON_DEMAND: {}}
    for one in sorted(items, key=lambda item: bool(item.get("isPrimaryMeterRegion"))):
        product, sku = str(one.get("productName", "")), str(one.get("skuName", ""))
        is_other = one.get("type") != "Consumption" or one.get("unitOfMeasure") != "1 Hour"
        if is_other or "Windows" in product or "Cloud Services" in product or sku.endswith("Low Priority"):
            continue
        if (price := float(one.get("retailPrice", 0.0))) > 0:
            market = Market.SPOT if sku.endswith("Spot") else Market.ON_DEMAND
            found[market][str(one["armSkuName"])] = price
    return found


def _items(connections: Connections, region: str, sizes: Collection[str]) -> Iterator[dict[str, Any]]:
    named = " or ".join(f"armSkuName eq '{size}'" for size in sizes)
    wanted = f"serviceName eq 'Virtual Machines' and armRegionName eq '{region}' and priceType eq 'Consumption'"
    query: dict[str, str] | None = {"api-version": VERSION, "$filter": f"{wanted} and ({named})"}
    page: str | None = PATH
    for _ in range(MOST_PAGES):
        told = connections.prices(page or PATH, query)
        yield from told.get("Items", ())
        page, query = told.get("NextPageLink"), None  # which holds the query already
        if not page:
            return
