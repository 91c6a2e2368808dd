"""The ledger of a fake cloud: what was launched, independent of the controller's own records."""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.recovery.market.view import Market


@dataclass
class Purchase:
    """One instance. Times are epoch seconds by the clock of its cloud."""

    id: str
    index: int
    region: str
    zone: str
    instance_type: str
    market: Market
    token: str
    price_per_hour: float
    launched_at: float
    tags: dict[str, str] = field(default_factory=dict)
    ended_at: float | None = None  # None while it is billed
    why: str | None = None  # how it ended, in the words of `clouds.local.layout`

    @property
    def usd(self) -> float:
        assert self.ended_at is not None, f"{self.id} still runs"
        return self.price_per_hour * (self.ended_at - self.launched_at) / 3600
