"""A controller that knows one real cloud: a Compute Engine of the tests' own, whose machines really run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_gce import billing
from holdfast.recovery.market import Market
from on_clouds import OnClouds, on_clouds


@pytest.fixture
def on_gce(tmp_path: Path) -> Iterator[OnClouds]:
    """It has read Google's prices: what it says that machines cost is what Google bills."""
    with on_clouds(tmp_path, "gcp") as one:
        one.controller.until(lambda: _has_read_prices(one), "Google's prices")
        yield one


def _has_read_prices(one: OnClouds) -> bool:
    found = one.controller.client.gpus(name="L4", count=1, cloud="gcp")
    asked = {row["region"]: row["spot_per_hour"] for row in found if row["instance_type"] == "g2-standard-4"}
    told = {region: billing.price("g2-standard-4", region, Market.SPOT) for region in one.fakes["gcp"].regions}
    return asked == pytest.approx(told, abs=2e-6)
