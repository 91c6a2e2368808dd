"""Offers of a Compute Engine region: machine types (`machine_types`) with prices from Google's list (`retail_prices`),
or from the built-in table (`catalog`) for types that the list lacks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perdure.controller.clouds.gcp.machines import parse
from perdure.controller.clouds.gcp.pricing import catalog, machine_types
from perdure.controller.clouds.gcp.pricing.catalog import TYPES
from perdure.controller.clouds.gcp.pricing.machine_families import SPOT_ONLY, family_of
from perdure.controller.clouds.gcp.pricing.machine_types import MachineType
from perdure.controller.clouds.gcp.pricing.retail_prices import GooglePriceList, Item, Part, Rates
from perdure.controller.clouds.gcp.sdk.connections import GcpConnections
from perdure.controller.clouds.pricing.region_catalog import RegionCatalog, Shape
from perdure.recovery.market.view import Market


@dataclass(frozen=True)
class Price:
    """USD per hour."""

    on_demand: float
    spot: float | None  # None: not sold as spot
    is_listed: bool  # from Google's price list, not from the built-in table


def list_regions(connections: GcpConnections) -> tuple[str, ...]:
    """The project's regions with zones that are up."""
    request = {"project": connections.project, "filter": "status = UP"}
    zones = connections.zones.list(request=request, **connections.once)
    return tuple(sorted({parse.last_segment(zone.region) for zone in zones}))


def fetch(connections: GcpConnections, price_list: GooglePriceList, region: str) -> RegionCatalog:
    """What each zone of the region sells, without types that have no price. Raises what `machine_types.fetch` does."""
    result = RegionCatalog({})
    rates = price_list.rates(region)
    prices: dict[str, Price | None] = {}
    for zone, in_zone in machine_types.fetch(connections, region).items():
        for name, machine in in_zone.items():
            if name not in prices:
                prices[name] = price_of(machine, region, rates)
            if (price := prices[name]) is None:
                continue
            result.zones.setdefault(zone, {})[name] = price.spot
            result.on_demand[name] = price.on_demand
            result.shapes[name] = Shape(machine.vcpus, machine.memory_gib, machine.accelerators)
    result.table_priced.extend(name for name, price in prices.items() if price is not None and not price.is_listed)
    result.spot_only.extend(name for name in SPOT_ONLY if name in result.shapes)
    return result


def price_of(machine: MachineType, region: str, rates: Rates) -> Price | None:
    """None if neither the price list nor the table has a price."""
    table_type = TYPES.get(machine.name)
    on_demand, spot = (_listed_price(machine, market, rates) for market in (Market.ON_DEMAND, Market.SPOT))
    if spot is None and table_type is not None:
        spot = catalog.spot_price(table_type, region)
    if on_demand is not None:
        return Price(on_demand, spot, is_listed=True)
    if table_type is None:
        return None
    return Price(catalog.on_demand_price(table_type, region), spot, is_listed=False)


def _listed_price(machine: MachineType, market: Market, rates: Rates) -> float | None:
    """The sum of its parts; None if one has no price."""
    total = 0.0
    for part, of, count in _parts(machine):
        if (usd := rates.get(Item(part, of, market))) is None:
            return None
        total += count * usd
    return round(total, 6) if total else None


def _parts(machine: MachineType) -> Iterator[tuple[Part, str, float]]:
    """(part, its name in the price list, quantity) of everything that is billed."""
    family = family_of(machine.name)
    if machine.gpus is not None:
        yield Part.GPU, machine.gpus[0], machine.gpus[1]
    if family is not None and family.words:
        yield Part.CORE, family.prefix, machine.vcpus
        yield Part.RAM, family.prefix, machine.memory_gib
        if machine.ssd_gib:
            yield Part.SSD, "", machine.ssd_gib
