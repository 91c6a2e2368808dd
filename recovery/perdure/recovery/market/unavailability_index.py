"""Collections of unavailable offers: those that a controller remembers, and an index of those that cover an offer.

`UnavailableOffers` has no duplicates. When a zone has no capacity, ten thousand jobs report the same: keeping each
report would slow every decision down.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from operator import itemgetter

from perdure.recovery.market.offers import Offer, OfferKey
from perdure.recovery.market.unavailable import UnavailableOffer

# Differences of this size between two reports, in seconds, are ignored.
_TOLERANCE_S = 1.0


class _Episode:
    """Reports of one scope and kind that ran concurrently: all came before the first of them had expired."""

    __slots__ = ("first", "last_to_expire", "latest")

    def __init__(self, first: UnavailableOffer) -> None:
        self.first = self.latest = self.last_to_expire = first

    def kept(self) -> Iterator[UnavailableOffer]:
        yield from dict.fromkeys((self.first, self.last_to_expire, self.latest))


class UnavailableOffers:
    """Unavailable offers in the order in which they came.

    Of an episode at most three are kept: the first, by which the episode counts as one failed try; the last to expire;
    and the latest, which says when the offer was last tried.
    """

    def __init__(self) -> None:
        self._episodes: dict[Hashable, list[_Episode]] = {}

    def add(self, unavailable: UnavailableOffer) -> bool:
        """Returns whether that changed anything."""
        if not self.is_new(unavailable):
            return False
        episodes = self._episodes.setdefault(_scope(unavailable), [])
        if not episodes or unavailable.at >= episodes[-1].first.until:
            episodes.append(_Episode(unavailable))
            return True
        episode = episodes[-1]
        episode.latest = max(episode.latest, unavailable, key=lambda r: r.at)
        episode.last_to_expire = max(episode.last_to_expire, unavailable, key=lambda r: r.until)
        return True

    def is_new(self, unavailable: UnavailableOffer) -> bool:
        """Whether `add` would change anything."""
        episodes = self._episodes.get(_scope(unavailable))
        if not episodes or unavailable.at >= episodes[-1].first.until:
            return True
        episode = episodes[-1]
        expires_later = unavailable.until > episode.last_to_expire.until + _TOLERANCE_S
        return expires_later or unavailable.at > episode.latest.at + _TOLERANCE_S

    def drop_expired(self, before: float) -> None:
        """Forget the episodes that had expired by `before`."""
        for scope, episodes in list(self._episodes.items()):
            left = [episode for episode in episodes if episode.last_to_expire.until > before]
            if left:
                self._episodes[scope] = left
            else:
                del self._episodes[scope]

    def __iter__(self) -> Iterator[UnavailableOffer]:
        return (one for episodes in self._episodes.values() for episode in episodes for one in episode.kept())


def _scope(unavailable: UnavailableOffer) -> Hashable:
    u = unavailable
    return (u.cloud, u.region, u.zone, u.instance_type, u.market, u.kind, u.from_preemption)


class UnavailabilityIndex:
    """Finds the unavailable offers that cover an offer without scanning all of them.

    Those that leave the same fields open are kept in one table, keyed by the fields that they name.
    """

    def __init__(self, unavailable: Iterable[UnavailableOffer]) -> None:
        shapes: dict[tuple[int, ...], dict[Hashable, list[UnavailableOffer]]] = {}
        exact: dict[OfferKey, list[UnavailableOffer]] = {}
        for u in unavailable:
            if (key := u.exact) is not None:
                if key in exact:
                    exact[key].append(u)
                else:
                    exact[key] = [u]
                continue
            scope = (u.cloud, u.region, u.zone, u.instance_type, u.market)
            named = tuple([i for i, field in enumerate(scope) if field is not None])
            shapes.setdefault(named, {}).setdefault(itemgetter(*named)(scope), []).append(u)
        self._exact = exact
        self._tables = [(itemgetter(*named), table) for named, table in shapes.items()] if shapes else []

    def covering(self, offer: Offer) -> list[UnavailableOffer]:
        """Equivalent to `[u for u in unavailable if u.covers(offer)]`, in no particular order."""
        key = offer.key
        exact = self._exact.get(key, [])
        if not self._tables:
            return exact
        return [*exact, *(u for fields, table in self._tables for u in table.get(fields(key), ()))]
