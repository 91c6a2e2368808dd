"""The retail price list: the prices of machines, among other items."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from perdure.controller.clouds.azure.pricing.catalog import on_demand_price, spot_price
from perdure.controller.clouds.pricing.region_catalog import InstanceType
from perdure.recovery.market.view import Market
from support.fakes.azure import responses
from support.fakes.azure.faults import Faults
from support.fakes.azure.responses import Answer
from support.fakes.azure.sizes import LACKING, SIZES

PATH = "/api/retail/prices"
PAGE = 100
_FILTER = re.compile(
    r"serviceName eq 'Virtual Machines' and armRegionName eq '(?P<region>\w+)' and priceType eq 'Consumption'"
    r" and \((?P<sizes>armSkuName eq '\w+'(?: or armSkuName eq '\w+')*)\)"
)


def price(kind: InstanceType, region: str, market: Market) -> float:
    """USD per hour. It differs from the controller's estimate."""
    if kind.name in LACKING:
        return kind.price_per_hour * (0.3 if market is Market.SPOT else 1.0)
    if market is Market.SPOT:
        return round(0.9 * spot_price(kind, region), 6)
    return round(1.05 * on_demand_price(kind, region), 6)


def answer(base_url: str, query: Mapping[str, str], faults: Faults) -> Answer:
    """One page of the price list. The link to the next page repeats the query."""
    selected = _FILTER.fullmatch(query.get("$filter", ""))
    if faults.prices_away:
        return responses.error("ServiceUnavailable", "The service is unavailable.", 503)
    if selected is None:
        return Answer(400, {"Error": {"Code": "InvalidParameter", "Message": "Invalid OData parameters supplied"}})
    sizes = re.findall(r"armSkuName eq '(\w+)'", selected["sizes"])
    items = [item for size in sizes if size in SIZES for item in _items(SIZES[size], selected["region"])]
    start = int(query.get("$skip", 0))
    more = {**query, "$skip": str(start + PAGE)}
    link = f"{base_url}{PATH}?{urlencode(more)}" if start + PAGE < len(items) else None
    page = items[start : start + PAGE]
    return Answer(200, {"BillingCurrency": "USD", "Items": page, "NextPageLink": link, "Count": len(page)})


def _items(kind: InstanceType, region: str) -> Iterator[dict[str, Any]]:
    short = kind.name.removeprefix("Standard_").replace("_", " ")
    on_demand, spot = (price(kind, region, market) for market in (Market.ON_DEMAND, Market.SPOT))
    for product, sku, usd, primary in (
        ("Virtual Machines Series", short, on_demand, True),
        ("Virtual Machines Series", short, on_demand * 7, False),
        ("Virtual Machines Series", f"{short} Spot", spot, True),
        ("Virtual Machines Series", f"{short} Low Priority", spot * 2, True),
        ("Virtual Machines Series Windows", short, on_demand * 2, True),
        ("Virtual Machines Series Windows", f"{short} Spot", spot * 3, True),
        ("Series Cloud Services", short, on_demand * 3, True),
    ):
        yield {
            "currencyCode": "USD",
            "retailPrice": usd,
            "unitPrice": usd,
            "armRegionName": region,
            "armSkuName": kind.name,
            "productName": product,
            "skuName": sku,
            "meterName": sku,
            "serviceName": "Virtual Machines",
            "unitOfMeasure": "1 Hour",
            "type": "Consumption",
            "isPrimaryMeterRegion": primary,
        }
