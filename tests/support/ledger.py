"""What was bought, from the books of a fake cloud: nothing in here is taken from what the controller believes."""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.recovery.market import Market


@dataclass
class Bought:
    """One instance. Times are epoch seconds, as its cloud tells them; `ended_at` None while it is billed."""

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
    ended_at: float | None = None
    why: str | None = None  # how it ended, in the words of `clouds.local.layout`

    @property
    def usd(self) -> float:
        assert self.ended_at is not None, f"{self.id} still runs"
        return self.price_per_hour * (self.ended_at - self.launched_at) / 3600
