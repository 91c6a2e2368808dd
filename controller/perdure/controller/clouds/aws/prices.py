"""What EC2 sells right now: which zones have which types, and their spot prices. How that is kept: `pricelist`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from perdure.controller.clouds.sold import Prices

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

LINUX = "Linux/UNIX"
NAMES_AT_ONCE = 200  # a filter takes no more values


def crawl_region(ec2: EC2Client, now: float, types: Collection[str]) -> Prices:
    """Which of `types` each zone sells, and at what spot price."""
    prices: Prices = {}
    for some in _portions(types):
        offerings = ec2.get_paginator("describe_instance_type_offerings").paginate(
            LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": some}]
        )
        for page in offerings:
            for sold in page["InstanceTypeOfferings"]:
                prices.setdefault(sold["Location"], {})[sold["InstanceType"]] = None
        # From now on: of each type and zone, the price in force alone.
        history = ec2.get_paginator("describe_spot_price_history").paginate(
            InstanceTypes=some,  # type: ignore[arg-type]
            ProductDescriptions=[LINUX],
            StartTime=datetime.fromtimestamp(now, UTC),
        )
        for prices_page in history:
            for told in prices_page["SpotPriceHistory"]:
                zone = prices.get(told["AvailabilityZone"], {})
                if told["InstanceType"] in zone and zone[told["InstanceType"]] is None:
                    zone[told["InstanceType"]] = float(told["SpotPrice"])
    return prices


def _portions(types: Collection[str]) -> Iterator[list[str]]:
    names = sorted(types)
    for start in range(0, len(names), NAMES_AT_ONCE):
        yield names[start : start + NAMES_AT_ONCE]
