"""What a region of Compute Engine sells, and for how much: sizes are `machines`', prices `billing`'s, and `catalog`'s
for what the price list does not tell. How it is kept: `pricelist`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perdure.controller.clouds.gcp import catalog, machines, reading
from perdure.controller.clouds.gcp.billing import Item, Part, PriceBook, Rates
from perdure.controller.clouds.gcp.catalog import TYPES
from perdure.controller.clouds.gcp.connections import Connections
from perdure.controller.clouds.gcp.families import SPOT_ONLY, family_of
from perdure.controller.clouds.gcp.machines import Machine
from perdure.controller.clouds.sold import Shape, Sold
from perdure.recovery.market import Market


@dataclass(frozen=True)
class Price:
    """USD per hour. `spot` None: not sold so. `is_told`: it is what the price list says, not what the table does."""

    on_demand: float
    spot: float | None
    is_told: bool


def regions(connections: Connections) -> tuple[str, ...]:
    """Those of the project that have zones which are up."""
    request = {"project": connections.project, "filter": "status = UP"}
    found = connections.zones.list(request=request, **connections.once)
    return tuple(sorted({reading.last_word(zone.region) for zone in found}))


def crawl_region(connections: Connections, book: PriceBook, region: str) -> Sold:
    """What each of its zones sells. What has no price is left out. Raises what `machines.of_region` does."""
    sold = Sold({})
    rates = book.rates(region)
    prices: dict[str, Price | None] = {}
    for zone, here in machines.of_region(connections, region).items():
        for name, machine in here.items():
            if name not in prices:
                prices[name] = price_of(machine, region, rates)
            if (price := prices[name]) is None:
                continue
            sold.zones.setdefault(zone, {})[name] = price.spot
            sold.on_demand[name] = price.on_demand
            sold.shapes[name] = Shape(machine.vcpus, machine.memory_gib, machine.accelerators)
    sold.by_table.extend(name for name, price in prices.items() if price is not None and not price.is_told)
    sold.spot_only.extend(name for name in SPOT_ONLY if name in sold.shapes)
    return sold


def price_of(machine: Machine, region: str, rates: Rates) -> Price | None:
    """None if neither the price list tells it nor the table."""
    kind = TYPES.get(machine.name)
    told, spot = (_told(machine, market, rates) for market in (Market.ON_DEMAND, Market.SPOT))
    if spot is None and kind is not None:
        spot = catalog.spot_price(kind, region)
    if told is not None:
        return Price(told, spot, is_told=True)
    return Price(catalog.on_demand_price(kind, region), spot, is_told=False) if kind is not None else None


def _told(machine: Machine, market: Market, rates: Rates) -> float | None:
    """The sum of its parts; None if one has no price."""
    total = 0.0
    for part, of, count in _parts(machine):
        if (usd := rates.get(Item(part, of, market))) is None:
            return None
        total += count * usd
    return round(total, 6) if total else None


def _parts(machine: Machine) -> Iterator[tuple[Part, str, float]]:
    """What is billed, and how much of it."""
    family = family_of(machine.name)
    if machine.gpus is not None:
        yield Part.GPU, machine.gpus[0], machine.gpus[1]
    if family is not None and family.words:
        yield Part.CORE, family.prefix, machine.vcpus
        yield Part.RAM, family.prefix, machine.memory_gib
        if machine.ssd_gib:
            yield Part.SSD, "", machine.ssd_gib
