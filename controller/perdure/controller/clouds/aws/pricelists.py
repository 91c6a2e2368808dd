"""AWS's own on-demand prices of a region, by the Price List service: Linux, shared tenancy, USD an hour.

A region's list comes in pages of a hundred products, with the terms of reservations that nobody here wants.
docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from perdure.controller.clouds.aws import sizes

# Machines as they are bought here, of all that EC2's price list names.
PRODUCTS = {
    "productFamily": "Compute Instance",
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}


def of_region(pricing: Any, region: str) -> dict[str, float]:
    """Type → price. `pricing`: a client of the service. Raises what botocore raises."""
    fields = {**PRODUCTS, "regionCode": region}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in fields.items()]
    found: dict[str, float] = {}
    for page in pricing.get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=filters):
        found |= read(page["PriceList"])
    return found


def read(products: Iterable[str]) -> dict[str, float]:
    """Type → price, of those that might be offered, and have one by the hour. `products`: as the service writes them,
    each a JSON text."""
    found: dict[str, float] = {}
    for text in products:
        product: dict[str, Any] = json.loads(text)
        name = product["product"]["attributes"].get("instanceType")
        for term in product.get("terms", {}).get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                price = float(dimension["pricePerUnit"].get("USD", 0.0))
                if name and sizes.is_offered(name) and dimension.get("unit") == "Hrs" and price > 0:
                    found[str(name)] = price
    return found
