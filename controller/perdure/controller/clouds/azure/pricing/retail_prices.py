"""Azure's public retail prices: USD per hour, without a customer's discounts. No credentials are needed.

learn.microsoft.com/rest/api/cost-management/retail-prices/azure-retail-prices
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from perdure.controller.clouds.azure.sdk.connections import AzureConnections
from perdure.recovery.market.view import Market

PATH = "/api/retail/prices"
VERSION = "2023-01-01-preview"
SIZES_PER_CALL = 25  # longer filters are rejected
MAX_PAGES = 50


def fetch(connections: AzureConnections, region: str, sizes: Collection[str]) -> dict[Market, dict[str, float]]:
    """Market → size → price, as far as they are listed. Raises azure-core's exceptions."""
    names = sorted(sizes)
    batches = [names[start : start + SIZES_PER_CALL] for start in range(0, len(names), SIZES_PER_CALL)]
    return parse_items(item for batch in batches for item in _items(connections, region, batch))


def parse_items(items: Iterable[Mapping[str, Any]]) -> dict[Market, dict[str, float]]:
    """Market → size → hourly price of Linux machines.

    Skips Windows, Cloud Services and low-priority machines, spot's predecessor. If a size is listed twice, its primary
    meter counts.
    """
    prices: dict[Market, dict[str, float]] = {Market.SPOT: {}, Market.ON_DEMAND: {}}
    for item in sorted(items, key=lambda item: bool(item.get("isPrimaryMeterRegion"))):
        product, sku = str(item.get("productName", "")), str(item.get("skuName", ""))
        is_other = item.get("type") != "Consumption" or item.get("unitOfMeasure") != "1 Hour"
        if is_other or "Windows" in product or "Cloud Services" in product or sku.endswith("Low Priority"):
            continue
        if (price := float(item.get("retailPrice", 0.0))) > 0:
            market = Market.SPOT if sku.endswith("Spot") else Market.ON_DEMAND
            prices[market][str(item["armSkuName"])] = price
    return prices


def _items(connections: AzureConnections, region: str, sizes: Collection[str]) -> Iterator[dict[str, Any]]:
    named = " or ".join(f"armSkuName eq '{size}'" for size in sizes)
    wanted = f"serviceName eq 'Virtual Machines' and armRegionName eq '{region}' and priceType eq 'Consumption'"
    query: dict[str, str] | None = {"api-version": VERSION, "$filter": f"{wanted} and ({named})"}
    page: str | None = PATH
    for _ in range(MAX_PAGES):
        response = connections.prices(page or PATH, query)
        yield from response.get("Items", ())
        page, query = response.get("NextPageLink"), None  # which holds the query already
        if not page:
            return
