"""The rows of `perdure gpus`, made from the offers of clouds."""

from __future__ import annotations

from perdure.controller.api.gpu_rows import annotate_price_age, gpu_rows
from perdure.controller.clouds.base.protocol import Fault
from perdure.controller.clouds.pricing.cache import InMemoryOfferCache
from perdure.controller.clouds.pricing.price_list import PriceList, PriceSource
from perdure.controller.clouds.pricing.region_catalog import InstanceType, RegionCatalog
from perdure.controller.runtime.clock import ManualClock
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market, Offer
from perdure.recovery.reasons import Reason

V100, A100 = ("V100", 8.0), ("A100", 1.0)


def offer(zone: str, price: float, accelerators: tuple[str, float] | None, market: Market = Market.SPOT) -> Offer:
    return Offer("aws", zone[:-1], zone, "p3", market, price, 10.0, 8.0, 61.0, accelerators)


OFFERS = [
    offer("east-1a", 3.0, V100),
    offer("east-1b", 2.0, V100),
    offer("east-1b", 10.0, V100, Market.ON_DEMAND),
    offer("west-1a", 1.5, V100),
    offer("east-1a", 1.0, A100),
    offer("east-1a", 0.1, None),
]


def test_gpu_rows__have_one_row_per_region_with_its_cheapest_zone() -> None:
    rows = gpu_rows(OFFERS, name="v100")
    shown = [(row["region"], row["zones"], row["spot_per_hour"], row["on_demand_per_hour"]) for row in rows]
    assert shown == [("west-1", 1, 1.5, None), ("east-1", 2, 2.0, 10.0)]


def test_gpu_rows__are_sorted_and_filtered_by_accelerator_and_count() -> None:
    assert [(row["accelerator"], row["count"]) for row in gpu_rows(OFFERS)] == [A100, V100, V100]
    assert gpu_rows(OFFERS, name="V100", count=4) == []


class Listed:
    """A cloud whose prices were fetched for region r only."""

    def __init__(self) -> None:
        clock = ManualClock(1000.0)
        catalog = RegionCatalog({"z": {"a": 0.1, "b": 0.2}}, table_priced=["b"])
        types = {name: InstanceType(name, 4, 16, 0.4, ("T4", 1.0)) for name in "ab"}
        source = PriceSource(
            "aws",
            types,
            regions=lambda: ["r", "s"],
            crawl=lambda region, _now: catalog if region == "r" else 1 / 0,
            on_demand=lambda kind, _region: kind.price_per_hour,
            classify=lambda error: Fault(FaultKind.RETRY_LATER, Reason.THROTTLED, "", str(error)),
            fallback=lambda _region: catalog,
            fallback_regions=("r", "s"),
            catalog_month="2025-12",
        )
        self.prices = PriceList(source, InMemoryOfferCache(clock), clock)


def test_price_age__is_the_time_of_the_fetch_or_the_month_of_the_table() -> None:
    cloud = Listed()
    cloud.prices.refresh(20.0)
    rows = gpu_rows(
        [*cloud.prices.offers(), Offer("local", "l", "l-a", "big", Market.SPOT, 1.0, 1.0, 8, 32, ("T4", 1.0))]
    )
    annotate_price_age(rows, {"aws": cloud, "local": object()})
    assert {(row["region"], row["instance_type"], row["priced_at"], row["catalog_month"]) for row in rows} == {
        ("r", "a", "1970-01-01T00:16:40Z", None),
        ("r", "b", None, "2025-12"),
        ("s", "a", None, "2025-12"),
        ("s", "b", None, "2025-12"),
        ("l", "big", None, None),
    }
