"""The cache of what each region sells: the protocol, and an implementation in memory.

The daemon uses a table of the database (`sql_cache`), which all controllers share and which survives a restart.
The cached payload is plain JSON (`region_catalog`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from perdure.controller.runtime.clock import Clock


@dataclass(frozen=True)
class CachedRegion:
    """A region's entry in the cache."""

    region: str
    fetched_at: float  # epoch seconds, by the reader's clock
    fetched_by: str  # the name of a controller
    payload: Mapping[str, Any]  # as given to `store`
    stamp: float  # the database's; it changes with the entry


class OfferCache(Protocol):
    """Thread-safe. No method raises: what cannot be stored is dropped and what cannot be read counts as missing."""

    owner: str  # the name of the controller that stores

    def load(self, cloud: str, known: Mapping[str, float]) -> Sequence[CachedRegion]:
        """The entries of all regions, except those whose stamp is the one in `known` (region → stamp)."""
        ...

    def claim(self, cloud: str, region: str, *, age_s: float) -> bool:
        """Whether the caller should fetch this region now: its entry is at least `age_s` old and no other controller
        is fetching it. A claim ends after a minute, or with `store`."""
        ...

    def store(self, cloud: str, region: str, payload: Mapping[str, Any]) -> float | None:
        """Store the region's entry, fetched now. Returns its stamp, None if it was not stored."""
        ...


class InMemoryOfferCache:
    """An `OfferCache` for a single process."""

    def __init__(self, clock: Clock, owner: str = "") -> None:
        self.owner = owner
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, str], CachedRegion] = {}

    def load(self, cloud: str, known: Mapping[str, float]) -> Sequence[CachedRegion]:
        with self._lock:
            entries = [entry for (entry_cloud, _), entry in self._entries.items() if entry_cloud == cloud]
        return [entry for entry in entries if known.get(entry.region) != entry.stamp]

    def claim(self, cloud: str, region: str, *, age_s: float) -> bool:
        with self._lock:
            entry = self._entries.get((cloud, region))
        return entry is None or self._clock.now() - entry.fetched_at >= age_s

    def store(self, cloud: str, region: str, payload: Mapping[str, Any]) -> float | None:
        now = self._clock.now()
        with self._lock:
            self._entries[cloud, region] = CachedRegion(region, now, self.owner, payload, stamp=now)
        return now
