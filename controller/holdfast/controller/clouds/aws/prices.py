"""What EC2 sells right now: which zones have which types, and their spot prices. How that is kept: `pricelist`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from holdfast.controller.clouds.aws.catalog import TYPES
from holdfast.controller.clouds.pricelist import Prices

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

LINUX = "Linux/UNIX"

Client = Callable[[str], "EC2Client"]


def crawl_region(client: Client, region: str, now: float) -> Prices:
    """Which of our types each zone sells, and at what spot price."""
    ec2 = client(region)
    prices: Prices = {}
    offerings = ec2.get_paginator("describe_instance_type_offerings").paginate(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": list(TYPES)}]
    )
    for page in offerings:
        for sold in page["InstanceTypeOfferings"]:
            prices.setdefault(sold["Location"], {})[sold["InstanceType"]] = None
    # From now on: of each type and zone, the price in force alone.
    history = ec2.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=list(TYPES),  # type: ignore[arg-type]
        ProductDescriptions=[LINUX],
        StartTime=datetime.fromtimestamp(now, UTC),
    )
    for prices_page in history:
        for told in prices_page["SpotPriceHistory"]:
            types = prices.get(told["AvailabilityZone"], {})
            if told["InstanceType"] in types and types[told["InstanceType"]] is None:
                types[told["InstanceType"]] = float(told["SpotPrice"])
    return prices
