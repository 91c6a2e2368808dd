"""An offer of a cloud, its market, and its key."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from perdure.recovery.frozen import cached, dataclass


class Market(StrEnum):
    SPOT = "spot"
    ON_DEMAND = "on-demand"

    __hash__ = str.__hash__  # an enum's own hash is slow, and every look-up of an offer needs it


class OfferKey(NamedTuple):
    """Identifies an offer; the price is not part of it. A tuple, because it is hashed in every query of a history."""

    cloud: str
    region: str
    zone: str
    instance_type: str
    market: Market

    def __str__(self) -> str:
        return f"{self.cloud}/{self.region}/{self.zone} {self.instance_type} {self.market}"


@dataclass(frozen=True)
class Offer:
    """A machine that a cloud offers, for one node. Prices are USD per hour."""

    cloud: str
    region: str
    zone: str
    instance_type: str
    market: Market
    price_per_hour: float
    on_demand_price_per_hour: float
    vcpus: float
    memory_gib: float
    accelerators: tuple[str, float] | None = None  # (name, count), with SkyPilot's names

    @cached
    def key(self) -> OfferKey:
        return OfferKey(self.cloud, self.region, self.zone, self.instance_type, self.market)

    @cached
    def name(self) -> str:
        """For users: the key as text."""
        return str(self.key)
