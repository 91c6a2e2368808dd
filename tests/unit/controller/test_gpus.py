"""What can be had with accelerators, from the offers of clouds."""

from __future__ import annotations

from perdure.controller.clock import ManualClock
from perdure.controller.clouds.base import Fault
from perdure.controller.clouds.offercache import InMemory
from perdure.controller.clouds.pricelist import PriceList, Source
from perdure.controller.clouds.sold import InstanceType, Sold
from perdure.controller.gpus import date, gpu_rows
from perdure.recovery.market import FaultKind, Market, Offer
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


def test_a_region_has_a_row_with_its_cheapest_zone() -> None:
    rows = gpu_rows(OFFERS, name="v100")
    told = [(row["region"], row["zones"], row["spot_per_hour"], row["on_demand_per_hour"]) for row in rows]
    assert told == [("west-1", 1, 1.5, None), ("east-1", 2, 2.0, 10.0)]


def test_accelerators_and_counts_are_in_order_and_can_be_chosen() -> None:
    assert [(row["accelerator"], row["count"]) for row in gpu_rows(OFFERS)] == [A100, V100, V100]
    assert gpu_rows(OFFERS, name="V100", count=4) == []


class Listed:
    """A cloud whose region r was asked, and no other."""

    def __init__(self) -> None:
        clock = ManualClock(1000.0)
        sold = Sold({"z": {"a": 0.1, "b": 0.2}}, by_table=["b"])
        types = {name: InstanceType(name, 4, 16, 0.4, ("T4", 1.0)) for name in "ab"}
        source = Source(
            "aws",
            types,
            regions=lambda: ["r", "s"],
            crawl=lambda region, _now: sold if region == "r" else 1 / 0,
            on_demand=lambda kind, _region: kind.price_per_hour,
            classify=lambda error: Fault(FaultKind.RETRY_LATER, Reason.THROTTLED, "", str(error)),
            table=lambda _region: sold,
            table_regions=("r", "s"),
            table_of="2025-12",
        )
        self.prices = PriceList(source, InMemory(clock), clock)


def test_rows_say_how_old_they_are() -> None:
    cloud = Listed()
    cloud.prices.refresh(20.0)
    rows = gpu_rows(
        [*cloud.prices.offers(), Offer("local", "l", "l-a", "big", Market.SPOT, 1.0, 1.0, 8, 32, ("T4", 1.0))]
    )
    date(rows, {"aws": cloud, "local": object()})
    assert {(row["region"], row["instance_type"], row["priced_at"], row["table_of"]) for row in rows} == {
        ("r", "a", "1970-01-01T00:16:40Z", None),
        ("r", "b", None, "2025-12"),
        ("s", "a", None, "2025-12"),
        ("s", "b", None, "2025-12"),
        ("l", "big", None, None),
    }
