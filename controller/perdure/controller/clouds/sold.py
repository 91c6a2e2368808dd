"""What a region of a cloud sells, as plain values, and as the JSON in which it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# zone → instance type → spot price in USD per hour, None where there is none
Prices = dict[str, dict[str, float | None]]


@dataclass(frozen=True)
class InstanceType:
    """A line of a built-in table. `price_per_hour`: on demand, in the region that its cloud's table of prices is for;
    USD."""

    name: str
    vcpus: float
    memory_gib: float
    price_per_hour: float
    accelerators: tuple[str, float] | None = None


@dataclass(frozen=True)
class Shape:
    """What a machine of some type has. `accelerators`: (name, count), with SkyPilot's names."""

    vcpus: float
    memory_gib: float
    accelerators: tuple[str, float] | None = None


@dataclass(frozen=True)
class Sold:
    """`on_demand`: type → USD per hour, of those of which the cloud itself tells. `shapes`: what it tells of types; it
    goes before the table, and a type that the table lacks is offered only with a shape and an on-demand price.
    `spot_only`: types that have an on-demand price, at which nobody gets them. `by_table`: types of which the cloud
    tells no price at all, so that theirs is the table's."""

    zones: Prices
    on_demand: dict[str, float] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    spot_only: list[str] = field(default_factory=list)
    by_table: list[str] = field(default_factory=list)


def written(sold: Sold) -> dict[str, Any]:
    """As plain JSON: what `read` reads."""
    return asdict(sold)


def read(told: Mapping[str, Any]) -> Sold:
    """Raises ValueError for what was not `written` by this version."""
    try:
        return Sold(
            {
                str(zone): {str(name): None if usd is None else float(usd) for name, usd in types.items()}
                for zone, types in told["zones"].items()
            },
            {str(name): float(usd) for name, usd in told["on_demand"].items()},
            {
                str(name): Shape(float(one["vcpus"]), float(one["memory_gib"]), _accelerators(one["accelerators"]))
                for name, one in told["shapes"].items()
            },
            [str(name) for name in told["spot_only"]],
            [str(name) for name in told["by_table"]],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"of another form: {error!r}") from error


def _accelerators(told: Any) -> tuple[str, float] | None:
    if told is None:
        return None
    name, count = told
    return str(name), float(count)
