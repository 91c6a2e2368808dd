"""What can be had with accelerators, from the offers of clouds."""

from __future__ import annotations

from holdfast.controller.gpus import gpu_rows
from holdfast.recovery.market import Market, Offer

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
