"""The Price List service: what machines cost here by the hour, among what else is listed beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES

from fake_ec2 import validation
from fake_ec2.answers import Answer
from fake_ec2.faults import Faults
from perdure.controller.clouds.aws.catalog import TYPES, on_demand_price

PAGE = 100
_JSON = "application/x-amz-json-1.1"


def on_demand(kind: str, region: str) -> float:
    """USD per hour: the table's; made up for what it lacks."""
    if kind in TYPES:
        return on_demand_price(TYPES[kind], region)
    told = INSTANCE_TYPES[kind]
    gpus = sum(gpu["Count"] for gpu in told.get("GpuInfo", {}).get("Gpus", ()))
    return round(0.05 * float(told["VCpuInfo"]["DefaultVCpus"]) + 2.0 * gpus, 6)


def answer(action: str, body: bytes, faults: Faults) -> Answer:
    """Raises validation.Invalid."""
    if "pricing:GetProducts" in faults.forbid:
        raise validation.Invalid("AccessDeniedException", "User is not authorized to perform: pricing:GetProducts")
    asked = validation.read_json(action, body, service="pricing")
    assert asked["ServiceCode"] == "AmazonEC2"
    assert all(one["Type"] == "TERM_MATCH" for one in asked["Filters"]), "other filters are not known here"
    wanted = {one["Field"]: one["Value"] for one in asked["Filters"]}
    region = wanted.pop("regionCode")
    found = [text for attributes, text in _products(region) if wanted.items() <= attributes.items()]
    start = int(asked.get("NextToken") or 0)
    more = {"NextToken": str(start + PAGE)} if start + PAGE < len(found) else {}
    page = {"FormatVersion": "aws_v1", "PriceList": found[start : start + PAGE], **more}
    return Answer(200, json.dumps(page).encode(), _JSON)


def error(invalid: validation.Invalid) -> Answer:
    return Answer(400, json.dumps({"__type": invalid.code, "message": str(invalid)}).encode(), _JSON)


@cache
def _products(region: str) -> tuple[tuple[dict[str, str], str], ...]:
    """Attributes, and the product as it is told."""
    return tuple((one["product"]["attributes"], json.dumps(one)) for one in _each_product(region))


def _each_product(region: str) -> Iterator[dict[str, Any]]:
    """Of each type, the machine itself, and what costs otherwise: Windows, hardware of one's own, a reservation."""
    usual = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}
    others: tuple[tuple[dict[str, str], float], ...] = (
        ({}, 1.0),
        ({"operatingSystem": "Windows"}, 2.0),
        ({"tenancy": "Dedicated"}, 3.0),
        ({"preInstalledSw": "SQL Std"}, 4.0),
        ({"capacitystatus": "AllocatedCapacityReservation"}, 0.0),
    )
    for kind in sorted({sold["InstanceType"] for sold in INSTANCE_TYPE_OFFERINGS["region"].get(region, ())}):
        for change, factor in others:
            price = on_demand(kind, region) * factor
            attributes = {"instanceType": kind, "regionCode": region, "servicecode": "AmazonEC2", **usual, **change}
            yield _product("Compute Instance", attributes, price, "Hrs")
    yield _product("Storage", {"volumeType": "General Purpose", **usual}, 0.08, "GB-Mo")


def _product(family: str, attributes: dict[str, str], price: float, unit: str) -> dict[str, Any]:
    """As in docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/reading-service-price-list-file-for-services.html."""
    dimension = {"unit": unit, "beginRange": "0", "endRange": "Inf", "pricePerUnit": {"USD": f"{price:.10f}"}}
    return {
        "product": {"productFamily": family, "attributes": {**attributes, "productFamily": family}, "sku": "SKU"},
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {"SKU.TERM": {"priceDimensions": {"SKU.TERM.RATE": dimension}, "sku": "SKU"}}},
    }
