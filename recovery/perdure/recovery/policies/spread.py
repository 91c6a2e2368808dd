"""SPREAD: never all in one place."""

from __future__ import annotations

from itertools import islice

from perdure.recovery.job import TaskView
from perdure.recovery.market import MarketView, Offer
from perdure.recovery.policies.choice import Choice
from perdure.recovery.policies.selection import choose

# Where a machine was bought so lately, the next one is bought elsewhere.
_LATELY_S = 3600.0


def spread(task: TaskView, market: MarketView, now: float) -> Choice:
    """Offers that last said yes before those that last said no or took a machine back; among them, where no job of this
    controller bought within the hour; then by price.

    After SpotHedge: what takes one zone's machines leaves those of the others. While fewer than two offers are in good
    standing, all are treated alike.
    """
    tracks = market.history.tracks
    standing = (o for o in market.offers if (track := tracks.get(o.key)) is None or track.available)
    some_stand = sum(1 for _ in islice(standing, 2)) == 2

    def reluctance(offer: Offer) -> tuple[bool, ...]:
        track = tracks.get(offer.key)
        if track is None:
            return False, False
        return some_stand and not track.available, track.available and now - track.seen_at < _LATELY_S

    return choose(task, market, now, reluctance)
