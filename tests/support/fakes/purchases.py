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
    stopped_at: float | None = None  # since when only its disk is billed
    stopped_s: float = 0.0  # how long that was the case before
    why: str | None = None  # how it ended, in the words of `clouds.local.layout`

    def resume(self, at: float) -> None:
        """It runs again, or ends: the time until now cost nothing if it was stopped."""
        if self.stopped_at is not None:
            self.stopped_s, self.stopped_at = self.stopped_s + max(0.0, at - self.stopped_at), None

    @property
    def usd(self) -> float:
        assert self.ended_at is not None, f"{self.id} still runs"
        return self.price_per_hour * (self.ended_at - self.launched_at - self.stopped_s) / 3600
