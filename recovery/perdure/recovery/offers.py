"""What clouds sell: an offer, its market, and the name that it goes by."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from perdure.recovery.values import cached, dataclass


class Market(StrEnum):
    SPOT = "spot"
    ON_DEMAND = "on-demand"

    __hash__ = str.__hash__  # an enumeration's own is slow, and every look-up of an offer needs it


class OfferKey(NamedTuple):
    """Names an offer; the price is not part of the name. A tuple: every question to a history looks one up."""

    cloud: str
    region: str
    zone: str
    instance_type: str
    market: Market

    def __str__(self) -> str:
        return f"{self.cloud}/{self.region}/{self.zone} {self.instance_type} {self.market}"


@dataclass(frozen=True)
class Offer:
    """What a cloud sells, for one node.

    Prices are USD per hour. `accelerators` is (name, count) with SkyPilot's names, or None.
    """

    cloud: str
    region: str
    zone: str
    instance_type: str
    market: Market
    price_per_hour: float
    on_demand_price_per_hour: float
    vcpus: float
    memory_gib: float
    accelerators: tuple[str, float] | None = None

    @cached
    def key(self) -> OfferKey:
        return OfferKey(self.cloud, self.region, self.zone, self.instance_type, self.market)

    @cached
    def name(self) -> str:
        """For people; the same as its key's."""
        return str(self.key)
