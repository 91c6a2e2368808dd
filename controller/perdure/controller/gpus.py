"""What can be had with accelerators, where, and for how much: the offers of all clouds, a row for each type of machine
in each region."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from perdure.controller.clouds.pricelist import Listing
from perdure.controller.store.queries import iso
from perdure.recovery.market import Market, Offer


def gpu_rows(offers: Iterable[Offer], *, name: str = "", count: float | None = None) -> list[dict[str, Any]]:
    """Rows for `perdure gpus`, the cheapest first within each accelerator and count. `name`: of one accelerator,
    however it is capitalised; `count`: that many on a machine. Prices are USD an hour for the whole machine, in the
    region's cheapest zone; None where a market does not sell it."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for offer in offers:
        if offer.accelerators is None or (name and offer.accelerators[0].lower() != name.lower()):
            continue
        accelerator, on_machine = offer.accelerators
        if count is not None and on_machine != count:
            continue
        key = (accelerator, on_machine, offer.cloud, offer.region, offer.instance_type)
        row = rows.setdefault(
            key,
            {
                "accelerator": accelerator,
                "count": on_machine,
                "cloud": offer.cloud,
                "region": offer.region,
                "instance_type": offer.instance_type,
                "vcpus": offer.vcpus,
                "memory_gib": offer.memory_gib,
                "zones": 0,
                "spot_per_hour": None,
                "on_demand_per_hour": None,
            },
        )
        market = "spot_per_hour" if offer.market is Market.SPOT else "on_demand_per_hour"
        row["zones"] += offer.market is Market.SPOT
        row[market] = offer.price_per_hour if row[market] is None else min(row[market], offer.price_per_hour)
    return sorted(rows.values(), key=lambda row: (row["accelerator"], row["count"], _price(row), row["region"]))


def date(rows: Iterable[dict[str, Any]], clouds: Mapping[str, object]) -> None:
    """Say in each of the rows when its cloud told it (`priced_at`), or of when the built-in table is that stands in
    (`table_of`). What a cloud is configured to sell has neither."""
    lists = {name: cloud.prices for name, cloud in clouds.items() if isinstance(cloud, Listing)}
    fetched = {name: prices.fetched() for name, prices in lists.items()}
    for row in rows:
        told, prices = fetched.get(row["cloud"], {}).get(row["region"]), lists.get(row["cloud"])
        is_told = told is not None and row["instance_type"] not in told.by_table
        row["priced_at"] = iso(told.at) if told is not None and is_told else None
        row["table_of"] = prices.source.table_of if prices and not is_told else None


def _price(row: dict[str, Any]) -> float:
    prices = [price for price in (row["spot_per_hour"], row["on_demand_per_hour"]) if price is not None]
    return float(min(prices))
