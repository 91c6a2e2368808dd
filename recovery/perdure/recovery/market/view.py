"""The market at one moment, as policies see it: offers, those to avoid, and the history of each."""

from __future__ import annotations

from dataclasses import field

from perdure.recovery.frozen import dataclass
from perdure.recovery.market.history import History
from perdure.recovery.market.offers import Market, Offer, OfferKey
from perdure.recovery.market.unavailable import UnavailableOffer

__all__ = ["Market", "MarketView", "Offer", "OfferKey"]


@dataclass(frozen=True)
class MarketView:
    """All that a policy may know of the market at one moment."""

    offers: tuple[Offer, ...] = ()  # of every enabled cloud
    unavailable: tuple[UnavailableOffer, ...] = ()  # from all jobs of the controller, some expired ones included
    disabled: dict[str, str] = field(default_factory=dict)  # cloud → why it cannot be used
    history: History = field(default_factory=History)
    #: Cloud → why some of its offers were not confirmed by the cloud, in one sentence.
    unconfirmed: dict[str, str] = field(default_factory=dict)
