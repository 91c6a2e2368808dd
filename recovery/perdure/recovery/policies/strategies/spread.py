"""SPREAD: distributes machines over zones."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from perdure.recovery.frozen import replace
from perdure.recovery.job import TaskView
from perdure.recovery.market.cooldown import EARLY_RETRY_S, has_default_cooldown
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import MarketView, Offer
from perdure.recovery.policies.decisions import Choice
from perdure.recovery.policies.placement import choose

# After a launch, the next machine is launched elsewhere for this long.
_RECENT_S = 3600.0

# While nearly all zones are without capacity, one that was so a moment ago is tried after the others for this long.
_DOUBTFUL_S = 600.0


def spread(task: TaskView, market: MarketView, now: float) -> Choice:
    """Prefers offers that were last seen available, then zones without another replica of the task's service, then
    offers that no job used within the hour; cheapest first.

    The idea is SpotHedge's: a preemption in one zone leaves the machines in other zones alone. If a replica has to
    share a zone, it shares the one with the most replicas: a service that has one replica more than it needs is
    complete without any one zone that has one of them, so as few zones as possible shall have more.

    While fewer than two offers were last seen available, all are treated alike. A replica does not wait then until the
    cool-downs of zones are over: the others would meanwhile be launched in the only zone that is left, and be lost
    together. It tries those last that had no capacity a moment ago.
    """
    tracks, num_there = market.history.tracks, Counter(task.recovery.taken_zones)
    reliable = (o for o in market.offers if (track := tracks.get(o.key)) is None or track.available)
    has_reliable = sum(1 for _ in islice(reliable, 2)) == 2
    is_replica = not task.recovery.recovers
    if is_replica and not has_reliable:
        market = _with_short_cooldowns(market, now)

    def reluctance(offer: Offer) -> tuple[float, ...]:
        track, there = tracks.get(offer.key), num_there[offer.zone]
        is_doubtful = track is not None and not track.available
        if is_replica and not has_reliable:
            is_tried = track is not None and is_doubtful and now - track.seen_at < _DOUBTFUL_S
            return there > 0, track.seen_at if track is not None and is_tried else 0.0
        is_recent = track is not None and track.available and now - track.seen_at < _RECENT_S
        return has_reliable and is_doubtful, there > 0, -there, is_recent

    return choose(task, market, now, reluctance)


def _with_short_cooldowns(market: MarketView, now: float) -> MarketView:
    """The market in which a zone is avoided for a minute only if it had no capacity, or took a machine back.

    What a zone does not offer at all, or a time that its cloud named, does not pass any sooner.
    """
    kept = (u for u in market.unavailable if now - u.at < EARLY_RETRY_S or not _is_short_of_capacity(u))
    return replace(market, unavailable=tuple(kept))


def _is_short_of_capacity(unavailable: UnavailableOffer) -> bool:
    is_zone = unavailable.kind is FaultKind.AVOID_ZONE
    return is_zone and (unavailable.from_preemption or has_default_cooldown(unavailable))
