"""SPREAD: distributes machines over zones."""

from __future__ import annotations

from itertools import islice

from perdure.recovery.job import TaskView
from perdure.recovery.market.view import MarketView, Offer
from perdure.recovery.policies.decisions import Choice
from perdure.recovery.policies.placement import choose

# After a launch, the next machine is launched elsewhere for this long.
_RECENT_S = 3600.0


def spread(task: TaskView, market: MarketView, now: float) -> Choice:
    """Prefers offers that were last seen available, then zones without another replica of the task's service, then
    offers that no job used within the hour; cheapest first.

    The idea is SpotHedge's: a preemption in one zone leaves the machines in other zones alone. While fewer than two
    offers were last seen available, all are treated alike.
    """
    tracks = market.history.tracks
    reliable = (o for o in market.offers if (track := tracks.get(o.key)) is None or track.available)
    has_reliable = sum(1 for _ in islice(reliable, 2)) == 2

    def reluctance(offer: Offer) -> tuple[bool, ...]:
        track, is_taken = tracks.get(offer.key), offer.zone in task.recovery.taken_zones
        if track is None:
            return False, is_taken, False
        is_recent = track.available and now - track.seen_at < _RECENT_S
        return has_reliable and not track.available, is_taken, is_recent

    return choose(task, market, now, reluctance)
