"""SPREAD: never all in one place."""

from __future__ import annotations

from holdfast.recovery.job import TaskView
from holdfast.recovery.market import MarketView, Offer
from holdfast.recovery.policies.choice import Choice
from holdfast.recovery.policies.selection import choose

# Where a machine was bought so lately, the next one is bought elsewhere.
_LATELY_S = 3600.0


def spread(task: TaskView, market: MarketView, now: float) -> Choice:
    """Offers that last said yes before those that last said no or took a machine back; among them, where no job of this
    controller bought within the hour; then by price.

    After SpotHedge: what takes one zone's machines leaves those of the others. While fewer than two offers are in good
    standing, all are treated alike.
    """
    tracks = market.history.tracks
    lost = {key for key, track in tracks.items() if not track.available}
    if sum(o.key not in lost for o in market.offers) < 2:
        lost = set()
    used = {key for key, track in tracks.items() if track.available and now - track.seen_at < _LATELY_S}

    def reluctance(offer: Offer) -> tuple[bool, ...]:
        return offer.key in lost, offer.key in used

    return choose(task, market, now, reluctance)
