"""Offers to avoid: which offers a failure or a preemption concerns, until when, and what the caller does next."""

from __future__ import annotations

from enum import StrEnum

from perdure.recovery.frozen import cached, dataclass
from perdure.recovery.market.offers import Market, Offer, OfferKey


class FaultKind(StrEnum):
    """What a failed cloud call means, named after what the caller does next."""

    AVOID_ZONE = "avoid-zone"  # no capacity here: next zone; this offer cools down
    AVOID_REGION = "avoid-region"  # a regional quota: next region, for this market
    AVOID_CLOUD = "avoid-cloud"  # a global quota or broken credentials: next cloud
    RETRY_LATER = "retry-later"  # throttled or a transient error: same call again after a while
    GIVE_UP = "give-up"  # the request itself is wrong: no retry can help
    AMBIGUOUS = "ambiguous"  # it may have succeeded: look for the token or tag before anything else


@dataclass(frozen=True)
class UnavailableOffer:
    """Offers to avoid until `until`, after a failed launch or a preemption.

    `cloud`, `region`, `zone`, `instance_type` and `market` are its scope; a field that is None matches anything.
    """

    cloud: str
    until: float  # epoch seconds
    kind: FaultKind
    at: float  # when it failed or was preempted
    region: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    market: Market | None = None
    code: str = ""  # the cloud's error code
    message: str = ""
    from_preemption: bool = False  # the offer has just taken a machine back
    unconfirmed: bool = (
        False  # it counts for the job that met it only: a node alone reports it, or its image may be bad
    )

    @cached
    def exact(self) -> OfferKey | None:
        """The one offer that it covers, as nearly all do; None if it may cover several."""
        if self.region is None or self.zone is None or self.instance_type is None or self.market is None:
            return None
        return OfferKey(self.cloud, self.region, self.zone, self.instance_type, self.market)

    def covers(self, offer: Offer) -> bool:
        """Whether `offer` lies within the scope, whatever the time."""
        return (
            self.cloud == offer.cloud
            and self.region in (None, offer.region)
            and self.zone in (None, offer.zone)
            and self.instance_type in (None, offer.instance_type)
            and self.market in (None, offer.market)
        )
