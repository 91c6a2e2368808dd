"""What a region of a cloud sells, as plain values and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from perdure.recovery.market.view import Market, Offer

# zone → instance type → spot price in USD per hour, None where there is none
Prices = dict[str, dict[str, float | None]]


@dataclass(frozen=True)
class InstanceType:
    """A line of a built-in table. `price_per_hour`: on demand, USD, in the table's base region."""

    name: str
    vcpus: float
    memory_gib: float
    price_per_hour: float
    accelerators: tuple[str, float] | None = None


@dataclass(frozen=True)
class Shape:
    """The hardware of an instance type. `accelerators`: (SkyPilot's name, count)."""

    vcpus: float
    memory_gib: float
    accelerators: tuple[str, float] | None = None


@dataclass(frozen=True)
class RegionCatalog:
    """What a region sells. A type that the built-in table lacks needs a shape and an on-demand price to be offered."""

    zones: Prices
    #: Type → USD per hour, as far as the cloud reports it.
    on_demand: dict[str, float] = field(default_factory=dict)
    #: Type → hardware, as far as the cloud reports it. Takes precedence over the table.
    shapes: dict[str, Shape] = field(default_factory=dict)
    #: Types whose on-demand price is listed but which cannot be launched on demand.
    spot_only: list[str] = field(default_factory=list)
    #: Types without a reported price: their prices are the table's.
    table_priced: list[str] = field(default_factory=list)


def host_offers(
    cloud: str,
    region: str,
    zones: Mapping[str, Iterable[str]],
    types: Mapping[str, InstanceType],
    price: Callable[[InstanceType, str], float],
) -> list[Offer]:
    """On-demand offers of the types that each zone has. `price`: of a type in a region, USD per hour."""
    offers = []
    for zone, names in zones.items():
        for kind in (types[name] for name in names if name in types):
            usd = price(kind, region)
            offers.append(
                Offer(cloud, region, zone, kind.name, Market.ON_DEMAND, usd, usd, kind.vcpus, kind.memory_gib)
            )
    return offers


def to_json(catalog: RegionCatalog) -> dict[str, Any]:
    """As plain JSON, for `from_json`."""
    return asdict(catalog)


def from_json(payload: Mapping[str, Any]) -> RegionCatalog:
    """Raises ValueError for a payload that this version's `to_json` did not make."""
    try:
        return RegionCatalog(
            {
                str(zone): {str(name): None if usd is None else float(usd) for name, usd in types.items()}
                for zone, types in payload["zones"].items()
            },
            {str(name): float(usd) for name, usd in payload["on_demand"].items()},
            {
                str(name): Shape(
                    float(shape["vcpus"]), float(shape["memory_gib"]), _accelerators(shape["accelerators"])
                )
                for name, shape in payload["shapes"].items()
            },
            [str(name) for name in payload["spot_only"]],
            [str(name) for name in payload["table_priced"]],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"unknown format: {error!r}") from error


def _accelerators(value: Any) -> tuple[str, float] | None:
    if value is None:
        return None
    name, count = value
    return str(name), float(count)
