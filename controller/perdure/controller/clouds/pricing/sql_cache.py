"""The offer cache in the database: what one controller fetches is used by all that share the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from sqlalchemy import Engine

from perdure.controller.clouds.pricing.cache import CachedRegion
from perdure.controller.runtime.clock import Clock
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.records import offers

log = structlog.get_logger(__name__)

CLAIM_S = 60.0
"""How long a claim lasts: about as long as a region's calls may take, each with its time-out."""


class SqlOfferCache:
    """An `OfferCache`. `owner`: this controller's name. `alone`: no other controller uses the database."""

    def __init__(self, database: Engine, clock: Clock, owner: str, *, alone: bool) -> None:
        self._database = database
        self._clock = clock
        self.owner = owner
        self._claims_as = "" if alone else owner  # alone, a daemon inherits the claims of the previous one

    def load(self, cloud: str, known: Mapping[str, float]) -> Sequence[CachedRegion]:
        now = self._clock.now()
        try:
            with self._database.connect() as conn:
                stamps = offers.fetch_times(conn, cloud)
                new = [region for region, stamp in stamps.items() if known.get(region) != stamp]
                rows = offers.load_regions(conn, cloud, new, now) if new else []
        except (*UNAVAILABLE, ValueError) as error:
            log.warning("cloud.offers_cache_read_failed", cloud=cloud, error=str(error))
            return ()
        return [
            CachedRegion(row.region, now - row.age_s, row.fetched_by, row.payload, stamp=row.fetched_at) for row in rows
        ]

    def claim(self, cloud: str, region: str, *, age_s: float) -> bool:
        """Also true if the database is unavailable: fetching twice is better than not at all."""
        now = self._clock.now()
        try:
            with self._database.begin() as conn:
                return offers.claim(conn, cloud, region, by=self._claims_as, now=now, age_s=age_s, for_s=CLAIM_S)
        except UNAVAILABLE as error:
            log.warning("cloud.offers_cache_claim_failed", cloud=cloud, region=region, error=str(error))
            return True

    def store(self, cloud: str, region: str, payload: Mapping[str, Any]) -> float | None:
        now = self._clock.now()
        try:
            with self._database.begin() as conn:
                return offers.store(conn, cloud, region, payload, by=self.owner, now=now)
        except UNAVAILABLE as error:
            log.warning("cloud.offers_cache_write_failed", cloud=cloud, region=region, error=str(error))
            return None
