"""What is known of an offer's availability: one history from launches, refusals, preemptions and notices of all jobs.

A policy reads it from `MarketView.history`; it is a value, and `learn` returns a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.recovery.offers import OfferKey


@dataclass(frozen=True)
class Sighting:
    """At `at` (epoch seconds) `key` could be bought or kept (`available`), or not: refused, taken back."""

    key: OfferKey
    at: float
    available: bool


@dataclass(frozen=True)
class Track:
    """One offer. `since`: when it was first seen as it is now; `seen_at`: when it was last seen so."""

    available: bool
    since: float
    seen_at: float


@dataclass(frozen=True)
class History:
    """Immutable; `track` costs one look-up."""

    tracks: Mapping[OfferKey, Track] = field(default_factory=dict)

    def track(self, key: OfferKey) -> Track | None:
        return self.tracks.get(key)


def learn(history: History, sighting: Sighting) -> History:
    """`history` with one sighting more. Sightings older than the newest of their offer change nothing."""
    known = history.tracks.get(sighting.key)
    if known is not None and sighting.at < known.seen_at:
        return history
    if known is None or known.available != sighting.available:
        track = Track(sighting.available, since=sighting.at, seen_at=sighting.at)
    else:
        track = replace(known, seen_at=sighting.at)
    return History({**history.tracks, sighting.key: track})
