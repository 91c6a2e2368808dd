"""This controller's view of the market: offers, offers found unavailable, and the history of offers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog
from sqlalchemy import Connection, Engine, bindparam, delete, insert, select

from perdure.controller.clouds.base.protocol import Cloud, HasPlacementAdvice
from perdure.controller.clouds.pricing.price_list import HasPriceList
from perdure.controller.reconcile.boot_failures import BootFailures
from perdure.controller.runtime.clock import Clock
from perdure.controller.store import codec
from perdure.controller.store.engine.batch_writer import WriteBatch
from perdure.controller.store.tables import OfferObservationRow, UnavailableOfferRow
from perdure.recovery.market.history import Advice, History, OfferObservation, with_advice, with_observations
from perdure.recovery.market.unavailability_index import UnavailableOffers
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import MarketView, Offer, OfferKey

Unavailable = UnavailableOfferRow.__table__  # type: ignore[attr-defined]
Observations = OfferObservationRow.__table__  # type: ignore[attr-defined]
_SELECT_UNAVAILABLE = (
    select(Unavailable)
    .where(Unavailable.c.until > bindparam("expired_at"), Unavailable.c.id > bindparam("after_id"))
    .order_by(Unavailable.c.id)
)
_INSERT_UNAVAILABLE, _INSERT_OBSERVATION = insert(Unavailable), insert(Observations)
_DELETE_UNAVAILABLE = delete(Unavailable).where(Unavailable.c.until <= bindparam("expired_at"))
_DELETE_OBSERVATIONS = delete(Observations).where(Observations.c.at <= bindparam("expired_at"))

log = structlog.get_logger(__name__)

# The offers are read from the clouds again after this long; each cloud caches the offers that are slow to fetch.
_OFFERS_TTL_S = 5.0

# Unavailable offers are kept this long after they expire: an offer that fails repeatedly is avoided for longer.
_UNAVAILABLE_KEPT_S = 4 * 3600.0
_EXPIRE_INTERVAL_S = 60.0

# Of one job's unconfirmed observations.
_MAX_OWN_OBSERVATIONS = 32

# Ids are assigned before rows are committed: a row may appear after one with a higher id, by at most this many.
_ID_OVERLAP = 100

# Observations are kept until they weigh next to nothing.
_HISTORY_S = 21 * 86400.0


class _OwnEvidence:
    """What only one job's nodes report of the market: its last observations, and the advice for its offers."""

    def __init__(self) -> None:
        self._observations: deque[OfferObservation] = deque(maxlen=_MAX_OWN_OBSERVATIONS)
        self._advice: dict[OfferKey, Advice] = {}
        self._applied: tuple[History, History] | None = None  # the last argument of `apply_to`, and its result

    def add(self, observations: Sequence[OfferObservation], advice: Sequence[Advice]) -> None:
        self._observations.extend(observations)
        self._advice.update({one.key: one for one in advice})
        self._applied = None

    def remove(self, confirmed: Sequence[OfferObservation]) -> None:
        machines = {(one.key, one.held_since) for one in confirmed}
        left = [one for one in self._observations if (one.key, one.held_since) not in machines]
        self._observations = deque(left, maxlen=_MAX_OWN_OBSERVATIONS)
        self._applied = None

    def apply_to(self, history: History) -> History:
        if self._applied is None or self._applied[0] is not history:
            result = with_advice(history, self._advice.values()) if self._advice else history
            self._applied = (history, with_observations(result, self._observations))
        return self._applied[1]


class MarketState:
    """Serves every job of the controller. Safe to use from any thread.

    `unreachable`: clouds that are not used, because their machines cannot reach the controller, and why.
    """

    def __init__(
        self,
        clouds: Mapping[str, Cloud],
        clock: Clock,
        *,
        unreachable: Mapping[str, str] | None = None,
        boot_failures: BootFailures | None = None,
    ) -> None:
        self.clouds = clouds
        self.boot_failures = boot_failures or BootFailures()
        self._unreachable = unreachable or {}
        self._clock = clock
        self._lock = threading.Lock()
        self._unavailable = UnavailableOffers()
        self._by_job: dict[int, dict[UnavailableOffer, None]] = {}
        self._own_evidence: dict[int, _OwnEvidence] = {}
        self._granted: dict[int, Offer] = {}  # job of a cluster → the slot that its queue has granted
        self._history = History()
        self._offers: tuple[Offer, ...] = ()
        self._disabled: dict[str, str] = {}
        self._unconfirmed: dict[str, str] = {}
        self._offers_read_at: float | None = None
        self._common: MarketView | None = None  # what all jobs see; None: it has to be built
        self._common_built_at = 0.0
        self._loaded_id = 0
        self._has_history = False

    def load(self, conn: Connection) -> None:
        """Load what any controller recorded: unavailable offers since the last call, and the history, once."""
        since = {"expired_at": self._clock.now() - _UNAVAILABLE_KEPT_S, "after_id": self._loaded_id - _ID_OVERLAP}
        rows = conn.execute(_SELECT_UNAVAILABLE, since).mappings().all()
        with self._lock:
            for row in rows:
                self._add(codec.decode_unavailable_offer(dict(row)), row["job_id"])
                self._loaded_id = row["id"]
        if not self._has_history:
            oldest_at = self._clock.now() - _HISTORY_S
            columns = (Observations.c[name] for name in codec.OBSERVATION_COLUMNS)
            recent = select(*columns).where(Observations.c.at > oldest_at).order_by(Observations.c.id)
            self.add_observations(codec.decode_observations(conn.execute(recent)))
            self._has_history = True

    def add_observations(self, observations: Sequence[OfferObservation]) -> None:
        with self._lock:
            if observations:
                self._history = with_observations(self._history, observations)
                self._common = None

    def add_advice(self, advice: Sequence[Advice]) -> None:
        """Add a cloud's own assessment of offers to the history."""
        with self._lock:
            self._history = with_advice(self._history, advice)
            self._common = None

    def add_unconfirmed(
        self, job_id: int, *, observations: Sequence[OfferObservation] = (), advice: Sequence[Advice] = ()
    ) -> None:
        """Add what only the nodes of `job_id` report: no other job sees it. It is not kept over a restart."""
        if observations or advice:
            with self._lock:
                self._own_evidence.setdefault(job_id, _OwnEvidence()).add(observations, advice)

    def confirm(self, job_id: int, observations: Sequence[OfferObservation]) -> None:
        """Add observations of `job_id` for all jobs. The job's own unconfirmed ones of the same machines are void."""
        with self._lock:
            if (own := self._own_evidence.get(job_id)) is not None:
                own.remove(observations)
        self.add_observations(observations)

    def view(self, job_id: int | None = None) -> MarketView:
        """The market as `job_id` sees it."""
        now = self._clock.now()
        with self._lock:
            if self._offers_read_at is None or now - self._offers_read_at >= _OFFERS_TTL_S:
                self._read_offers()
                self._offers_read_at = now
            if self._common is None or now - self._common_built_at >= _EXPIRE_INTERVAL_S:
                self._unavailable.drop_expired(now - _UNAVAILABLE_KEPT_S)
                unavailable, disabled = tuple(self._unavailable), dict(self._disabled)
                self._common = MarketView(self._offers, unavailable, disabled, self._history, dict(self._unconfirmed))
                self._common_built_at = now
            return self._common if job_id is None else self._with_own(self._common, job_id)

    def mean_uptime_s(self, offer: OfferKey) -> float:
        """The mean time between interruptions that the history of all jobs lets expect of machines of `offer`."""
        with self._lock:
            history = self._history
        return history.mean_uptime_s(offer, self._clock.now())

    def _with_own(self, market: MarketView, job_id: int) -> MarketView:
        """`market` with what concerns `job_id` alone."""
        if slot := self._granted.get(job_id):
            return replace(market, offers=(slot,))
        if own := self._by_job.get(job_id):
            market = replace(market, unavailable=(*market.unavailable, *own))
        if evidence := self._own_evidence.get(job_id):
            market = replace(market, history=evidence.apply_to(market.history))
        return market

    def grant(self, job_id: int, slot: Offer | None) -> None:
        """Let a job of a cluster see `slot`, and nothing else of the market; None: it waits in the cluster's queue."""
        with self._lock:
            if slot is None:
                self._granted.pop(job_id, None)
            else:
                self._granted[job_id] = slot

    def unavailable_offers(self, job_id: int) -> tuple[UnavailableOffer, ...]:
        """The unavailable offers that concern `job_id`, expired ones included."""
        return self.view(job_id).unavailable

    def add_unavailable(self, offers: Sequence[UnavailableOffer], job_id: int) -> None:
        """Add what a launch of `job_id` found unavailable."""
        with self._lock:
            for offer in offers:
                self._add(offer, job_id if concerns_one_job(offer) else None)

    def forget_job(self, job_id: int) -> None:
        with self._lock:
            self._by_job.pop(job_id, None)
            self._own_evidence.pop(job_id, None)
            self._granted.pop(job_id, None)

    def _add(self, offer: UnavailableOffer, job_id: int | None) -> None:
        if job_id is not None:
            expired_at = self._clock.now() - _UNAVAILABLE_KEPT_S
            known = self._by_job.get(job_id, {})
            self._by_job[job_id] = {**{one: None for one in known if one.until > expired_at}, offer: None}
        elif self._unavailable.add(offer):
            self._common = None

    def is_new(self, offer: UnavailableOffer) -> bool:
        """Whether `offer` is not covered by a known unavailable offer. If it is covered, it need not be recorded."""
        with self._lock:
            return concerns_one_job(offer) or self._unavailable.is_new(offer)

    def unusable(self, cloud: Cloud) -> str | None:
        """Why no machine may be bought in a cloud, and what to do; None if one may."""
        return self._unreachable.get(cloud.name) or cloud.unusable()

    def _read_offers(self) -> None:
        offers: list[Offer] = []
        disabled: dict[str, str] = {}
        unconfirmed: dict[str, str] = {}
        for name, cloud in self.clouds.items():
            try:
                unusable_reason = self.unusable(cloud)
                if unusable_reason:
                    disabled[name] = unusable_reason
                else:
                    offers.extend(cloud.offers())
                    if isinstance(cloud, HasPriceList) and (why := cloud.prices.table_in_use()):
                        unconfirmed[name] = why
            except Exception as error:  # noqa: BLE001 - one failing cloud must not hide the others
                fault = cloud.classify(error)
                disabled[name] = f"listing its offers failed: {fault.message}"
                log.warning("cloud.offers_failed", cloud=name, code=fault.code, error=fault.message)
            else:
                if isinstance(cloud, HasPlacementAdvice) and not unusable_reason:
                    self._history = with_advice(self._history, cloud.advice())
        if (new_offers := tuple(offers)) != self._offers or disabled != self._disabled:
            self._offers, self._disabled = new_offers, disabled
        self._unconfirmed = unconfirmed
        self._common = None


def load_market(
    clouds: Mapping[str, Cloud],
    clock: Clock,
    database: Engine,
    *,
    unreachable: Mapping[str, str] | None = None,
    boot_failures: BootFailures | None = None,
) -> MarketState:
    """The market with everything that is recorded of it. Raises what the database raises."""
    market = MarketState(clouds, clock, unreachable=unreachable, boot_failures=boot_failures)
    with database.connect() as conn:
        market.load(conn)
    return market


def concerns_one_job(offer: UnavailableOffer) -> bool:
    """Whether it says nothing about requests of other jobs: the request itself was wrong, or only a node reports it."""
    return offer.kind is FaultKind.GIVE_UP or offer.unconfirmed


def record_observations(writes: WriteBatch, observations: Sequence[OfferObservation], now: float) -> None:
    """Record observations, and delete those that are too old to count."""
    for observation in observations:
        writes.add(_INSERT_OBSERVATION, codec.observation_columns(observation))
    if observations:
        writes.conn.execute(_DELETE_OBSERVATIONS, {"expired_at": now - _HISTORY_S})


def record_unavailable(writes: WriteBatch, unavailable: Sequence[tuple[int, UnavailableOffer]], now: float) -> None:
    """Record unavailable offers, each with the id of the job that found it, and delete those long expired."""
    for job_id, offer in unavailable:
        row = {**codec.unavailable_offer_columns(offer), "job_id": job_id if concerns_one_job(offer) else None}
        writes.add(_INSERT_UNAVAILABLE, row)
    if unavailable:
        writes.conn.execute(_DELETE_UNAVAILABLE, {"expired_at": now - _UNAVAILABLE_KEPT_S})
