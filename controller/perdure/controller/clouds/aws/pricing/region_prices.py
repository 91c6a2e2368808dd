"""Offers and prices of an EC2 region: which zones have which types, spot prices, and on-demand prices.

On-demand prices come from the Price List service: Linux, shared tenancy, USD per hour. A region's list comes in pages
of a hundred products, with terms of reservations that are skipped.
docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from perdure.controller.clouds.aws.pricing import sizes
from perdure.controller.clouds.pricing.region_catalog import Prices

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

LINUX = "Linux/UNIX"
NAMES_PER_CALL = 200  # the maximum number of values of a filter

# The products of EC2's price list that correspond to the machines launched here.
PRODUCTS = {
    "productFamily": "Compute Instance",
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}


def fetch_spot(ec2: EC2Client, now: float, types: Collection[str]) -> Prices:
    """Those of `types` that each zone offers, with their spot prices."""
    prices: Prices = {}
    for names in _batches(types):
        for name, place in _offerings(ec2, names):
            prices.setdefault(place, {})[name] = None
        # From now on: this returns only the current price of each type and zone.
        history = ec2.get_paginator("describe_spot_price_history").paginate(
            InstanceTypes=names,  # type: ignore[arg-type]
            ProductDescriptions=[LINUX],
            StartTime=datetime.fromtimestamp(now, UTC),
        )
        for prices_page in history:
            for entry in prices_page["SpotPriceHistory"]:
                zone = prices.get(entry["AvailabilityZone"], {})
                if entry["InstanceType"] in zone and zone[entry["InstanceType"]] is None:
                    zone[entry["InstanceType"]] = float(entry["SpotPrice"])
    return prices


def fetch_zones(ec2: EC2Client, types: Collection[str]) -> dict[str, list[str]]:
    """Zone → those of `types` that it offers."""
    zones: dict[str, list[str]] = {}
    for names in _batches(types):
        for name, zone in _offerings(ec2, names):
            zones.setdefault(zone, []).append(name)
    return zones


def _offerings(ec2: EC2Client, names: list[str]) -> Iterator[tuple[str, str]]:
    """(type, zone) of everything that is offered."""
    pages = ec2.get_paginator("describe_instance_type_offerings").paginate(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": names}]
    )
    return ((str(one["InstanceType"]), str(one["Location"])) for page in pages for one in page["InstanceTypeOfferings"])


def fetch_on_demand(pricing: Any, region: str) -> dict[str, float]:
    """Type → price. `pricing`: a client of the Price List service. Raises botocore's exceptions."""
    fields = {**PRODUCTS, "regionCode": region}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in fields.items()]
    prices: dict[str, float] = {}
    for page in pricing.get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=filters):
        prices |= parse_products(page["PriceList"])
    return prices


def parse_products(products: Iterable[str]) -> dict[str, float]:
    """Type → price, of types that may be offered and have an hourly price. `products`: JSON texts of the service."""
    prices: dict[str, float] = {}
    for text in products:
        product: dict[str, Any] = json.loads(text)
        name = product["product"]["attributes"].get("instanceType")
        for term in product.get("terms", {}).get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                price = float(dimension["pricePerUnit"].get("USD", 0.0))
                if name and sizes.is_offered(name) and dimension.get("unit") == "Hrs" and price > 0:
                    prices[str(name)] = price
    return prices


def _batches(types: Collection[str]) -> Iterator[list[str]]:
    names = sorted(types)
    for start in range(0, len(names), NAMES_PER_CALL):
        yield names[start : start + NAMES_PER_CALL]
