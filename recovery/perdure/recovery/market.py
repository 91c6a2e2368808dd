"""What clouds sell and what they refused: offers, refusals, and the market view that policies choose from."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from perdure.recovery.history import History
from perdure.recovery.offers import Market, Offer, OfferKey
from perdure.recovery.values import cached, dataclass

__all__ = ["FaultKind", "Market", "MarketView", "Offer", "OfferKey", "Refusal"]


class FaultKind(StrEnum):
    """What a failed cloud call means, named after what the caller does next."""

    AVOID_ZONE = "avoid-zone"  # no capacity here: next zone; this offer cools down
    AVOID_REGION = "avoid-region"  # a regional quota: next region, for this market
    AVOID_CLOUD = "avoid-cloud"  # a global quota or broken credentials: next cloud
    RETRY_LATER = "retry-later"  # throttled or a passing error: same call again after a while
    GIVE_UP = "give-up"  # the request itself is wrong: no retry can help
    FIND_OUT = "find-out"  # it may have happened: look by token or tag before anything else


@dataclass(frozen=True)
class Refusal:
    """An offer that said no. Fields that are None match anything: that is the refusal's scope.

    `until` is in epoch seconds. `from_preemption` marks an offer that just took a machine back.
    """

    cloud: str
    until: float
    kind: FaultKind
    at: float
    region: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    market: Market | None = None
    code: str = ""
    message: str = ""
    from_preemption: bool = False

    @cached
    def exact(self) -> OfferKey | None:
        """The one offer that it concerns, as nearly all do; None if it may concern several."""
        if self.region is None or self.zone is None or self.instance_type is None or self.market is None:
            return None
        return OfferKey(self.cloud, self.region, self.zone, self.instance_type, self.market)

    def covers(self, offer: Offer) -> bool:
        """Whether `offer` lies within this refusal's scope, whatever the time."""
        return (
            self.cloud == offer.cloud
            and self.region in (None, offer.region)
            and self.zone in (None, offer.zone)
            and self.instance_type in (None, offer.instance_type)
            and self.market in (None, offer.market)
        )


@dataclass(frozen=True)
class MarketView:
    """All that a policy may know of the market at one moment.

    `offers`: of every enabled cloud. `refusals`: of all jobs of the controller, past ones included as long as they are
    kept. `disabled`: cloud name → why it can not be used. `history`: what is known of each offer's availability.
    """

    offers: tuple[Offer, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    disabled: dict[str, str] = field(default_factory=dict)
    history: History = field(default_factory=History)
