"""The rows of `perdure gpus`: offers with accelerators, one row per instance type and region."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from perdure.controller.clouds.pricing.price_list import HasPriceList
from perdure.controller.store.queries.job_listing import iso
from perdure.recovery.market.view import Market, Offer


def gpu_rows(offers: Iterable[Offer], *, name: str = "", count: float | None = None) -> list[dict[str, Any]]:
    """Rows for `perdure gpus`, the cheapest first within each accelerator and count.

    `name`: list only this accelerator, in any case. `count`: list only machines with that number of accelerators.
    Prices are USD per hour for the whole machine, in the region's cheapest zone; None if the market has no such offer.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for offer in offers:
        if offer.accelerators is None or (name and offer.accelerators[0].lower() != name.lower()):
            continue
        accelerator, per_machine = offer.accelerators
        if count is not None and per_machine != count:
            continue
        key = (accelerator, per_machine, offer.cloud, offer.region, offer.instance_type)
        row = rows.setdefault(
            key,
            {
                "accelerator": accelerator,
                "count": per_machine,
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


def annotate_price_age(rows: Iterable[dict[str, Any]], clouds: Mapping[str, object]) -> None:
    """Set `priced_at` (when the cloud published the price) or `catalog_month` (the month of the built-in table that is
    used instead) in each row. Prices from config.yaml have neither."""
    lists = {name: cloud.prices for name, cloud in clouds.items() if isinstance(cloud, HasPriceList)}
    fetched = {name: prices.fetched() for name, prices in lists.items()}
    for row in rows:
        fetched_list, prices = fetched.get(row["cloud"], {}).get(row["region"]), lists.get(row["cloud"])
        is_fetched = fetched_list is not None and row["instance_type"] not in fetched_list.table_priced
        row["priced_at"] = iso(fetched_list.fetched_at) if fetched_list is not None and is_fetched else None
        row["catalog_month"] = prices.source.catalog_month if prices and not is_fetched else None


def _price(row: dict[str, Any]) -> float:
    prices = [price for price in (row["spot_per_hour"], row["on_demand_per_hour"]) if price is not None]
    return float(min(prices))
