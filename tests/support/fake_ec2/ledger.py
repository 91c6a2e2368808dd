"""What was bought, from the fake EC2's own books: nothing in here is taken from what the controller believes."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.recovery.market import Market


@dataclass
class Bought:
    """One instance. Times are whole epoch seconds, as EC2 tells them; `ended_at` None while it is billed."""

    id: str
    index: int
    region: str
    zone: str
    instance_type: str
    market: Market
    token: str
    price_per_hour: float
    launched_at: int
    tags: dict[str, str] = field(default_factory=dict)
    ended_at: int | None = None
    why: str | None = None  # EC2's StateReason

    @property
    def usd(self) -> float:
        assert self.ended_at is not None, f"{self.id} still runs"
        return self.price_per_hour * (self.ended_at - self.launched_at) / 3600
