"""The market as this controller knows it: what clouds offer, and the memory of who said no."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog
from sqlalchemy import Connection, bindparam, delete, insert, select

from perdure.controller.clock import Clock
from perdure.controller.clouds.base import Advising, Cloud
from perdure.controller.store import codec
from perdure.controller.store.tables import RefusalRow, SightingRow
from perdure.controller.store.writes import Writes
from perdure.recovery.history import Advice, History, Sighting, advised, learn
from perdure.recovery.market import FaultKind, MarketView, Offer, Refusal
from perdure.recovery.refusals import RefusalMemory

Refusals = RefusalRow.__table__  # type: ignore[attr-defined]
Sightings = SightingRow.__table__  # type: ignore[attr-defined]
_RECORDED = (
    select(Refusals)
    .where(Refusals.c.until > bindparam("ran_out"), Refusals.c.id > bindparam("known"))
    .order_by(Refusals.c.id)
)
_INSERT_REFUSAL, _INSERT_SIGHTING = insert(Refusals), insert(Sightings)
_FORGET_REFUSALS = delete(Refusals).where(Refusals.c.until <= bindparam("ran_out"))
_FORGET_SIGHTINGS = delete(Sightings).where(Sightings.c.at <= bindparam("ran_out"))

log = structlog.get_logger(__name__)

# A price list is read again after this long; a cloud keeps its own cache of what is slow to crawl.
_OFFERS_AGE_S = 5.0

# Refusals that have run out are kept this long: a zone that says no again and again is left alone for longer.
_MEMORY_S = 4 * 3600.0

_FORGET_EVERY_S = 60.0

# Ids are given before they are committed: so many may come to light after a higher one was read.
_OVERTAKEN = 100
# Sightings are kept until they count for next to nothing.
_HISTORY_S = 21 * 86400.0


class Market:
    """Offers and refusals, for every job of the controller. Safe to use from any thread."""

    def __init__(self, clouds: Mapping[str, Cloud], clock: Clock) -> None:
        self.clouds = clouds
        self._clock = clock
        self._lock = threading.Lock()
        self._refusals = RefusalMemory()
        self._of_job: dict[int, dict[Refusal, None]] = {}
        self._history = History()
        self._offers: tuple[Offer, ...] = ()
        self._disabled: dict[str, str] = {}
        self._read_at: float | None = None
        self._common: MarketView | None = None  # what every job sees, until it changes
        self._common_at = 0.0
        self._loaded_to = 0
        self._has_history = False

    def load(self, conn: Connection) -> None:
        """Take up what any daemon recorded: refusals since the last call, and once the history of offers."""
        since = {"ran_out": self._clock.now() - _MEMORY_S, "known": self._loaded_to - _OVERTAKEN}
        rows = conn.execute(_RECORDED, since).mappings().all()
        with self._lock:
            for row in rows:
                self._add(codec.refusal(dict(row)), row["job_id"])
                self._loaded_to = row["id"]
        if not self._has_history:
            kept = select(Sightings).where(Sightings.c.at > self._clock.now() - _HISTORY_S).order_by(Sightings.c.id)
            self.learn([codec.sighting(dict(row)) for row in conn.execute(kept).mappings()])
            self._has_history = True

    def learn(self, sightings: Sequence[Sighting]) -> None:
        with self._lock:
            for sighting in sightings:
                self._history = learn(self._history, sighting)
                self._common = None

    def advise(self, advice: Sequence[Advice]) -> None:
        """Take a cloud's word for what it is worth."""
        with self._lock:
            self._history = advised(self._history, advice)
            self._common = None

    def view(self, job_id: int | None = None) -> MarketView:
        """The market as `job_id` sees it."""
        now = self._clock.now()
        with self._lock:
            if self._read_at is None or now - self._read_at >= _OFFERS_AGE_S:
                self._read_offers()
                self._read_at = now
            if self._common is None or now - self._common_at >= _FORGET_EVERY_S:
                self._refusals.forget(now - _MEMORY_S)
                refusals, disabled = tuple(self._refusals), dict(self._disabled)
                self._common, self._common_at = MarketView(self._offers, refusals, disabled, self._history), now
            own = self._of_job.get(job_id) if job_id is not None else None
            return replace(self._common, refusals=(*self._common.refusals, *own)) if own else self._common

    def refusals(self, job_id: int) -> tuple[Refusal, ...]:
        """All that `job_id` may remember, past ones among them."""
        return self.view(job_id).refusals

    def remember(self, refusals: list[Refusal], job_id: int) -> None:
        with self._lock:
            for refusal in refusals:
                self._add(refusal, job_id if concerns_one_job(refusal) else None)

    def forget_job(self, job_id: int) -> None:
        with self._lock:
            self._of_job.pop(job_id, None)

    def _add(self, refusal: Refusal, job_id: int | None) -> None:
        if job_id is not None:
            self._of_job.setdefault(job_id, {})[refusal] = None
        elif self._refusals.add(refusal):
            self._common = None

    def is_news(self, refusal: Refusal) -> bool:
        """Whether it says more than what is known: only then is it worth being kept."""
        with self._lock:
            return concerns_one_job(refusal) or self._refusals.is_news(refusal)

    def forget_offers(self) -> None:
        """The next view reads every price list again."""
        with self._lock:
            self._read_at = None

    def _read_offers(self) -> None:
        offers: list[Offer] = []
        disabled: dict[str, str] = {}
        for name, cloud in self.clouds.items():
            try:
                why_not = cloud.unusable()
                if why_not:
                    disabled[name] = why_not
                else:
                    offers.extend(cloud.offers())
            except Exception as error:  # noqa: BLE001 - one cloud's trouble must not hide the others
                fault = cloud.classify(error)
                disabled[name] = f"listing its offers failed: {fault.message}"
                log.warning("cloud.offers_failed", cloud=name, code=fault.code, error=fault.message)
            else:
                if isinstance(cloud, Advising) and not why_not:
                    self._history = advised(self._history, cloud.advice())
        if (known := tuple(offers)) != self._offers or disabled != self._disabled:
            self._offers, self._disabled = known, disabled
        self._common = None


def concerns_one_job(refusal: Refusal) -> bool:
    """A request that was wrong says nothing about the requests of other jobs."""
    return refusal.kind is FaultKind.GIVE_UP


def record_sightings(writes: Writes, sightings: Sequence[Sighting], now: float) -> None:
    """Keep sightings, and forget those that count no longer."""
    for sighting in sightings:
        writes.put(_INSERT_SIGHTING, codec.sighting_columns(sighting))
    if sightings:
        writes.conn.execute(_FORGET_SIGHTINGS, {"ran_out": now - _HISTORY_S})


def record_refusals(writes: Writes, refusals: Sequence[tuple[int, Refusal]], now: float) -> None:
    """Keep refusals, each that of a job (id), and forget those that count no longer."""
    for job_id, refusal in refusals:
        row = {**codec.refusal_columns(refusal), "job_id": job_id if concerns_one_job(refusal) else None}
        writes.put(_INSERT_REFUSAL, row)
    if refusals:
        writes.conn.execute(_FORGET_REFUSALS, {"ran_out": now - _MEMORY_S})
