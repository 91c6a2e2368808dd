"""What clouds sell, kept in the database: what one controller has fetched, all that share the database use, and so does
the next one on it. How it is used: `clouds/pricelist.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from sqlalchemy import Engine

from perdure.controller.clock import Clock
from perdure.controller.clouds.offercache import Page
from perdure.controller.store import fetched
from perdure.controller.store.database import UNAVAILABLE

log = structlog.get_logger(__name__)

CLAIM_S = 60.0
"""Whoever asks a region has it for so long: about what its calls may take, each with its time-out."""


class DatabaseCache:
    """An `OfferCache`. `owner`: this controller's name; `alone`: no other uses the database."""

    def __init__(self, database: Engine, clock: Clock, owner: str, *, alone: bool) -> None:
        self._database = database
        self._clock = clock
        self.by = owner
        self._claims_as = "" if alone else owner  # alone, what an earlier daemon claimed is this one's

    def recall(self, cloud: str, known: Mapping[str, float]) -> Sequence[Page]:
        now = self._clock.now()
        try:
            with self._database.connect() as conn:
                stamps = fetched.stamps(conn, cloud)
                new = [region for region, stamp in stamps.items() if known.get(region) != stamp]
                rows = fetched.pages(conn, cloud, new, now) if new else []
        except (*UNAVAILABLE, ValueError) as error:
            log.warning("cloud.offers_not_recalled", cloud=cloud, error=str(error))
            return ()
        return [Page(row.region, now - row.age_s, row.by, row.told, stamp=row.at) for row in rows]

    def claim(self, cloud: str, region: str, *, age_s: float) -> bool:
        """True as well where it can not be found out: better asked twice than not at all."""
        now = self._clock.now()
        try:
            with self._database.begin() as conn:
                return fetched.claim(conn, cloud, region, by=self._claims_as, now=now, age_s=age_s, for_s=CLAIM_S)
        except UNAVAILABLE as error:
            log.warning("cloud.offers_not_claimed", cloud=cloud, region=region, error=str(error))
            return True

    def remember(self, cloud: str, region: str, told: Mapping[str, Any]) -> float | None:
        now = self._clock.now()
        try:
            with self._database.begin() as conn:
                return fetched.remember(conn, cloud, region, told, by=self.by, now=now)
        except UNAVAILABLE as error:
            log.warning("cloud.offers_not_kept", cloud=cloud, region=region, error=str(error))
            return None
