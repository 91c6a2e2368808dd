"""The Price List service: hourly prices of machines, among other items."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES

from perdure.controller.clouds.aws.pricing.catalog import TYPES, on_demand_price
from support.fakes.ec2 import validation
from support.fakes.ec2.faults import Faults
from support.fakes.ec2.responses import Answer

PAGE = 100
_JSON = "application/x-amz-json-1.1"


def on_demand(kind: str, region: str) -> float:
    """USD per hour: from the controller's table, or invented for types that the table lacks."""
    if kind in TYPES:
        return on_demand_price(TYPES[kind], region)
    description = INSTANCE_TYPES[kind]
    gpus = sum(gpu["Count"] for gpu in description.get("GpuInfo", {}).get("Gpus", ()))
    return round(0.05 * float(description["VCpuInfo"]["DefaultVCpus"]) + 2.0 * gpus, 6)


def answer(action: str, body: bytes, faults: Faults) -> Answer:
    """One page of GetProducts. Raises validation.Invalid."""
    if "pricing:GetProducts" in faults.forbid:
        raise validation.Invalid("AccessDeniedException", "User is not authorized to perform: pricing:GetProducts")
    parameters = validation.read_json(action, body, service="pricing")
    assert parameters["ServiceCode"] == "AmazonEC2"
    assert all(one["Type"] == "TERM_MATCH" for one in parameters["Filters"]), "this fake has no other filters"
    wanted = {one["Field"]: one["Value"] for one in parameters["Filters"]}
    region = wanted.pop("regionCode")
    matching = [text for attributes, text in _products(region) if wanted.items() <= attributes.items()]
    start = int(parameters.get("NextToken") or 0)
    more = {"NextToken": str(start + PAGE)} if start + PAGE < len(matching) else {}
    page = {"FormatVersion": "aws_v1", "PriceList": matching[start : start + PAGE], **more}
    return Answer(200, json.dumps(page).encode(), _JSON)


def error(invalid: validation.Invalid) -> Answer:
    return Answer(400, json.dumps({"__type": invalid.code, "message": str(invalid)}).encode(), _JSON)


@cache
def _products(region: str) -> tuple[tuple[dict[str, str], str], ...]:
    """(attributes, the product as the API returns it)"""
    return tuple((one["product"]["attributes"], json.dumps(one)) for one in _each_product(region))


def _each_product(region: str) -> Iterator[dict[str, Any]]:
    """Each type, and variants of it with other prices: Windows, dedicated hardware, a reservation."""
    usual = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}
    others: tuple[tuple[dict[str, str], float], ...] = (
        ({}, 1.0),
        ({"operatingSystem": "Windows"}, 2.0),
        ({"tenancy": "Dedicated"}, 3.0),
        ({"preInstalledSw": "SQL Std"}, 4.0),
        ({"capacitystatus": "AllocatedCapacityReservation"}, 0.0),
    )
    for kind in sorted({offered["InstanceType"] for offered in INSTANCE_TYPE_OFFERINGS["region"].get(region, ())}):
        for change, factor in others:
            price = on_demand(kind, region) * factor
            attributes = {"instanceType": kind, "regionCode": region, "servicecode": "AmazonEC2", **usual, **change}
            yield _product("Compute Instance", attributes, price, "Hrs")
    yield _product("Storage", {"volumeType": "General Purpose", **usual}, 0.08, "GB-Mo")


def _product(family: str, attributes: dict[str, str], price: float, unit: str) -> dict[str, Any]:
    """The format is that of
    docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/reading-service-price-list-file-for-services.html."""
    dimension = {"unit": unit, "beginRange": "0", "endRange": "Inf", "pricePerUnit": {"USD": f"{price:.10f}"}}
    return {
        "product": {"productFamily": family, "attributes": {**attributes, "productFamily": family}, "sku": "SKU"},
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {"SKU.TERM": {"priceDimensions": {"SKU.TERM.RATE": dimension}, "sku": "SKU"}}},
    }
