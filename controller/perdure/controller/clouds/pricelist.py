"""What a cloud sells right now: zones, types and prices, fetched region by region in the background, and kept.

Nobody waits for it: until a region has told, a built-in table says what it sells. What was known stays known while a
region does not answer: a market that seems empty would end jobs that only need to wait. Where it is kept, and how
several controllers share the work: `offercache`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import structlog

from perdure.controller.clock import Clock
from perdure.controller.clouds.base import Fault
from perdure.controller.clouds.offercache import OfferCache, Page
from perdure.controller.clouds.sold import InstanceType, Sold, read, written
from perdure.recovery.market import FaultKind, Market, Offer

if TYPE_CHECKING:
    from apscheduler.schedulers.base import BaseScheduler

log = structlog.get_logger(__name__)

AGE_S = 600.0
AGE_AFTER_TROUBLE_S = 60.0
FIRST_FETCH_S = 60.0
REGIONS_AT_ONCE = 8
WANTED_S = 3600.0
"""What somebody has asked for in the last hour is kept fresh; else the cloud is left alone."""
TICK_S = 5.0
"""How often `PriceList.refresh` is to be called."""

# Regions that are nearly old are asked along with one that is.
_NEARLY_S = 0.9 * AGE_S
# A region whose own trouble is one of these sells nothing, whatever the table says.
_SHUT = (FaultKind.AVOID_REGION, FaultKind.AVOID_CLOUD)


@dataclass(frozen=True)
class Source:
    """How one cloud's prices are found. `types`: its built-in table. `regions()`: those to fetch, which may take a call
    of the cloud's. `crawl(region, now)`: what the region sells, asked of the cloud. `on_demand(type, region)`: USD per
    hour, where the crawl told none. `classify` as a `Cloud`'s.

    `table(region)`: what the table says that a region sells, which is offered until the region itself has told; None:
    the first who asks for offers waits instead. `table_regions`: those of which it can say. `table_of`: when it was
    typed, such as `2025-12`. `only`: the regions of the configuration, empty for all.
    """

    cloud: str
    types: Mapping[str, InstanceType]
    regions: Callable[[], Sequence[str]]
    crawl: Callable[[str, float], Sold]
    on_demand: Callable[[InstanceType, str], float]
    classify: Callable[[Exception], Fault]
    table: Callable[[str], Sold] | None = None
    table_regions: Sequence[str] = ()
    table_of: str = ""
    only: Sequence[str] = ()


@dataclass(frozen=True)
class Fetched:
    """When a region was asked (epoch seconds), and by which controller. `by_table`: types of which it told no price."""

    at: float
    by: str
    by_table: frozenset[str] = frozenset()


class PriceList:
    """Shared by threads."""

    def __init__(self, source: Source, cache: OfferCache, clock: Clock) -> None:
        self.source = source
        self._cache = cache
        self._clock = clock
        self._changed = threading.Condition()
        self._known: dict[str, tuple[Fetched, tuple[Offer, ...]]] = {}
        self._stamps: dict[str, float] = {}  # of the cache's pages that were looked at
        self._used: frozenset[str] | None = frozenset(source.only) or None  # None: not told yet
        self._by_table: dict[str, tuple[Offer, ...]] = {}
        self._offers: tuple[Offer, ...] | None = None  # None: nobody has asked yet
        self._trouble: dict[str, Exception] = {}  # by region; "" for all of them
        self._fetching = False
        self._next_at = float("-inf")
        self._wanted_at = float("-inf")

    def offers(self) -> Sequence[Offer]:
        """All offers, at most `AGE_S` old while the cloud answers. Nothing is waited for, unless nothing is known, or
        nothing of a region of the configuration, and the table does not have it: to offer nothing would end jobs that
        only need to wait. Raises what went wrong if there is nothing to offer."""
        if self._offers is None:
            self._recall()
        with self._changed:
            self._wanted_at = self._clock.now()
            self._begin()
            if self._is_in_the_dark() and not self._trouble:
                self._changed.wait_for(lambda: not self._fetching, FIRST_FETCH_S)
            if not self._offers and self._trouble:
                raise next(iter(self._trouble.values()))
            return self._offers or ()

    def _is_in_the_dark(self) -> bool:
        unheard = (one for one in self.source.only if one not in self._known and not self._by_table.get(one))
        return not (self._offers or self._known) or next(unheard, None) is not None

    def refresh(self, wait_s: float = 0.0) -> None:
        """What the ticker calls: take up what others have fetched, and begin to fetch what is old, if anybody wants it.
        With `wait_s`, it is wanted; returns when nothing is being fetched, or after so long."""
        with self._changed:
            now = self._clock.now()
            if wait_s:
                self._wanted_at = now
            elif now - self._wanted_at > WANTED_S:
                return
        self._recall()
        with self._changed:
            self._begin()
            if wait_s:
                self._changed.wait_for(lambda: not self._fetching, wait_s)

    def fetched(self) -> Mapping[str, Fetched]:
        """Region → when it was asked. Offers of other regions are the table's."""
        with self._changed:
            return {region: fetched for region, (fetched, _) in self._known.items()}

    def notes(self) -> Sequence[str]:
        """How old it is, and what keeps it so; nothing while nothing is known."""
        with self._changed:
            if not self._known:
                return ()
            minutes = (self._clock.now() - min(fetched.at for fetched, _ in self._known.values())) / 60.0
            found = next(iter(self._trouble.values()), None)
            trouble = f"; the last try failed: {self.source.classify(found).message}" if found else ""
            return (f"what is sold, and for how much, was asked {minutes:.0f} min ago{trouble}",)

    # ---- fetching ----

    def _begin(self) -> None:
        if not self._fetching and self._clock.now() >= self._next_at:
            self._fetching = True
            threading.Thread(target=self._fetch, name=f"{self.source.cloud}-prices", daemon=True).start()

    def _fetch(self) -> None:
        """Every region that is old, side by side; one that fails keeps what it had."""
        regions: Sequence[str] = ()
        trouble: dict[str, Exception] = {}
        try:
            regions = self._regions()
            with ThreadPoolExecutor(REGIONS_AT_ONCE, thread_name_prefix=f"{self.source.cloud}-prices") as pool:
                for region, asked in [(region, pool.submit(self._fetch_one, region)) for region in regions]:
                    try:
                        asked.result()
                    except Exception as error:  # noqa: BLE001 - a region's trouble is not the others'
                        trouble[region] = error
                        self._warn(error, region=region)
            self._recall()
        except Exception as error:  # noqa: BLE001 - reported to whoever asks
            trouble[""] = error
            self._warn(error)
        finally:
            self._end(regions, trouble)

    def _regions(self) -> Sequence[str]:
        regions = self.source.regions()
        with self._changed:
            self._used = frozenset(regions)
            self._known = {region: known for region, known in self._known.items() if region in self._used}
        return regions

    def _fetch_one(self, region: str) -> None:
        """Unless it is not old, or somebody else is at it."""
        now = self._clock.now()
        with self._changed:
            known = self._known.get(region)
        if known is not None and now - known[0].at < _NEARLY_S:
            return
        if not self._cache.claim(self.source.cloud, region, age_s=_NEARLY_S):
            return
        sold = self.source.crawl(region, now)
        offers = tuple(self._each(region, sold))
        stamp = self._cache.remember(self.source.cloud, region, written(sold))
        with self._changed:
            self._take_over(region, Fetched(now, self._cache.by, frozenset(sold.by_table)), offers)
            if stamp is not None:
                self._stamps[region] = stamp

    def _end(self, regions: Sequence[str], trouble: dict[str, Exception]) -> None:
        with self._changed:
            now = self._clock.now()
            self._trouble = trouble
            # One that somebody else is asking is looked for again soon.
            due = [self._known[one][0].at + AGE_S if one in self._known else now + TICK_S for one in regions]
            self._next_at = now + AGE_AFTER_TROUBLE_S if trouble else min([*due, now + AGE_S])
            self._fetching = False
            self._list()
            self._changed.notify_all()

    def _recall(self) -> None:
        """Take up what the cache has that is newer; what can not be read is not there."""
        with self._changed:
            stamps = dict(self._stamps)
        pages = self._cache.recall(self.source.cloud, stamps)
        read_now = [(page, self._read(page)) for page in pages]
        with self._changed:
            is_first = self._offers is None
            for page, sold in read_now:
                self._stamps[page.region] = page.stamp
                if sold is not None and (self._used is None or page.region in self._used):
                    self._take_over(page.region, *sold)
            if is_first:
                self._list()
                if self._used is not None and self._used <= self._known.keys():
                    self._next_at = AGE_S + min(fetched.at for fetched, _ in self._known.values())

    def _read(self, page: Page) -> tuple[Fetched, tuple[Offer, ...]] | None:
        try:
            sold = read(page.told)
            return Fetched(page.at, page.by, frozenset(sold.by_table)), tuple(self._each(page.region, sold))
        except ValueError as error:
            log.warning("cloud.offers_not_understood", cloud=self.source.cloud, region=page.region, error=str(error))
            return None

    def _take_over(self, region: str, fetched: Fetched, offers: tuple[Offer, ...]) -> None:
        known = self._known.get(region)
        if known is not None and fetched.at < known[0].at:
            return
        if known is not None and known[1] == offers:
            offers = known[1]  # the same objects, which compare at once
        self._known[region] = (fetched, offers)
        self._list()

    def _warn(self, error: Exception, **where: str) -> None:
        log.warning("cloud.prices_failed", cloud=self.source.cloud, error=self.source.classify(error).message, **where)

    # ---- offers ----

    def _list(self) -> None:
        """Put the offers together anew."""
        parts = {region: offers for region, (_, offers) in self._known.items()}
        # Before the cloud has told of regions: those of which an earlier daemon knew.
        used = self._used or self._known.keys() or self.source.table_regions
        if self.source.table is not None and not self._is_shut(""):
            for region in used:
                if region not in parts and not self._is_shut(region):
                    parts[region] = self._of_table(region, self.source.table)
        self._offers = tuple(offer for region in sorted(parts) for offer in parts[region])

    def _of_table(self, region: str, table: Callable[[str], Sold]) -> tuple[Offer, ...]:
        if region not in self._by_table:
            self._by_table[region] = tuple(self._each(region, table(region)))
        return self._by_table[region]

    def _is_shut(self, region: str) -> bool:
        error = self._trouble.get(region)
        return error is not None and self.source.classify(error).kind in _SHUT

    def _each(self, region: str, sold: Sold) -> Iterator[Offer]:
        """What has no price is not offered, nor that of which nobody says what it is."""
        for zone, types in sold.zones.items():
            for name, spot_price in types.items():
                kind = self.source.types.get(name)
                shape = sold.shapes.get(name) or kind
                on_demand = sold.on_demand.get(name) or (self.source.on_demand(kind, region) if kind else None)
                if shape is None or on_demand is None:
                    continue
                asked = None if name in sold.spot_only else on_demand
                for market, price in ((Market.SPOT, spot_price), (Market.ON_DEMAND, asked)):
                    if price is not None:
                        yield Offer(
                            cloud=self.source.cloud,
                            region=region,
                            zone=zone,
                            instance_type=name,
                            market=market,
                            price_per_hour=price,
                            on_demand_price_per_hour=on_demand,
                            vcpus=shape.vcpus,
                            memory_gib=shape.memory_gib,
                            accelerators=shape.accelerators,
                        )


@runtime_checkable
class Listing(Protocol):
    """A cloud whose offers are a `PriceList`'s."""

    prices: PriceList


def keep_fresh(ticker: BaseScheduler, clouds: Iterable[object]) -> None:
    """Have the ticker refresh those of `clouds` that are `Listing`."""
    for cloud in clouds:
        if isinstance(cloud, Listing):
            ticker.add_job(cloud.prices.refresh, "interval", seconds=TICK_S, max_instances=1, coalesce=True)
