"""What a cloud sells now: zones, types and prices. A background thread fetches them region by region.

Callers do not wait: a built-in table supplies the offers of a region until its first fetch. A failed fetch keeps the
previous offers, since an empty market would fail jobs that only have to wait. `cache` stores the results and divides
the work among controllers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import structlog

from perdure.controller.clouds.base.protocol import Fault
from perdure.controller.clouds.pricing.cache import CachedRegion, OfferCache
from perdure.controller.clouds.pricing.region_catalog import InstanceType, RegionCatalog, from_json, to_json
from perdure.controller.runtime.clock import Clock
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market, Offer

log = structlog.get_logger(__name__)

MAX_AGE_S = 600.0
RETRY_AFTER_FAILURE_S = 60.0
FIRST_FETCH_TIMEOUT_S = 60.0
MAX_CONCURRENT_REGIONS = 8
DEMAND_WINDOW_S = 3600.0
"""Prices are refreshed for this long after the last call of `offers`."""
TICK_S = 5.0
"""How often `PriceList.refresh` should be called."""

# A region of this age is fetched along with one that is older than MAX_AGE_S.
_REFETCH_AGE_S = 0.9 * MAX_AGE_S
# A region whose fetch fails with one of these has no offers, not even the table's.
_OPTED_OUT = (FaultKind.AVOID_REGION, FaultKind.AVOID_CLOUD)


@dataclass(frozen=True)
class PriceSource:
    """How one cloud's prices are fetched."""

    cloud: str
    #: The built-in table, by name.
    types: Mapping[str, InstanceType]
    #: The regions to fetch; may call the cloud.
    regions: Callable[[], Sequence[str]]
    #: (region, now) → what the region sells; calls the cloud.
    crawl: Callable[[str, float], RegionCatalog]
    #: (type, region) → USD per hour, for a type whose price the crawl did not return.
    on_demand: Callable[[InstanceType, str], float]
    #: As `Cloud.classify`.
    classify: Callable[[Exception], Fault]
    #: Region → what the built-in table says it sells, offered until the first fetch. None: the first caller waits.
    fallback: Callable[[str], RegionCatalog] | None = None
    #: The regions that `fallback` covers.
    fallback_regions: Sequence[str] = ()
    #: The month of the built-in table's prices, such as `2025-12`.
    catalog_month: str = ""
    #: The configured regions; empty for all.
    only: Sequence[str] = ()


@dataclass(frozen=True)
class RegionFetch:
    """The last fetch of a region."""

    fetched_at: float  # epoch seconds
    fetched_by: str  # the name of a controller
    table_priced: frozenset[str] = frozenset()  # types whose prices are the built-in table's


class PriceList:
    """The offers of one cloud. Thread-safe."""

    def __init__(self, source: PriceSource, cache: OfferCache, clock: Clock) -> None:
        self.source = source
        self._cache = cache
        self._clock = clock
        self._condition = threading.Condition()
        self._regions: dict[str, tuple[RegionFetch, tuple[Offer, ...]]] = {}
        self._stamps: dict[str, float] = {}  # of the cache's entries that were loaded
        self._regions_in_use: frozenset[str] | None = (
            frozenset(source.only) or None
        )  # regions in use; None: not known yet
        self._fallback_offers: dict[str, tuple[Offer, ...]] = {}
        self._offers: tuple[Offer, ...] | None = None  # None: never requested
        self._failures: dict[str, Exception] = {}  # by region; "" for the list of regions
        self._fetching = False
        self._next_at = float("-inf")
        self._requested_at = float("-inf")

    def offers(self) -> Sequence[Offer]:
        """All offers, at most `MAX_AGE_S` old while the cloud responds.

        Waits for the first fetch only if neither a fetch nor the table has anything, or nothing for a configured
        region: returning no offers would fail jobs that only have to wait. Raises the error of the fetch if there is
        nothing to offer.
        """
        if self._offers is None:
            self._load_cached()
        with self._condition:
            self._requested_at = self._clock.now()
            self._start_fetch()
            if self._has_no_prices() and not self._failures:
                self._condition.wait_for(lambda: not self._fetching, FIRST_FETCH_TIMEOUT_S)
            if not self._offers and self._failures:
                raise next(iter(self._failures.values()))
            return self._offers or ()

    def _has_no_prices(self) -> bool:
        without_prices = (
            region
            for region in self.source.only
            if region not in self._regions and not self._fallback_offers.get(region)
        )
        return not (self._offers or self._regions) or next(without_prices, None) is not None

    def refresh(self, wait_s: float = 0.0) -> None:
        """Load what other controllers have fetched and start fetching old regions, if there is recent demand.

        The ticker calls it. `wait_s` counts as demand, and waits for running fetches for at most that long.
        """
        with self._condition:
            now = self._clock.now()
            if wait_s:
                self._requested_at = now
            elif now - self._requested_at > DEMAND_WINDOW_S:
                return
        self._load_cached()
        with self._condition:
            self._start_fetch()
            if wait_s:
                self._condition.wait_for(lambda: not self._fetching, wait_s)

    def fetched(self) -> Mapping[str, RegionFetch]:
        """Region → its last fetch. Offers of other regions are the table's."""
        with self._condition:
            return {region: fetched for region, (fetched, _) in self._regions.items()}

    def notes(self) -> Sequence[str]:
        """The age of the prices and the last failure; empty before the first fetch has ended."""
        with self._condition:
            if not self._regions:
                return (self._table_note(),) if self._failures and self.source.fallback else ()
            minutes = (self._clock.now() - min(fetched.fetched_at for fetched, _ in self._regions.values())) / 60.0
            failure = next(iter(self._failures.values()), None)
            last_failure = f"; the last update failed: {self.source.classify(failure).message}" if failure else ""
            return (f"offers and prices were fetched {minutes:.0f} min ago{last_failure}",)

    def table_in_use(self) -> str | None:
        """One sentence if offers of some regions are the built-in table's; None if all were fetched."""
        with self._condition:
            if self.source.fallback is None or self._is_opted_out(""):
                return None
            used = self._regions_in_use or self._regions.keys() or self.source.fallback_regions
            unknown = [region for region in used if region not in self._regions and not self._is_opted_out(region)]
            return self._table_note() if unknown else None

    def _table_note(self) -> str:
        failure = next(iter(self._failures.values()), None)
        why = self.source.classify(failure).message if failure else "it has not answered yet"
        month = self.source.catalog_month
        return f"{self.source.cloud} could not be asked what it offers, so a built-in table of {month} was used: {why}"

    # ---- fetching ----

    def _start_fetch(self) -> None:
        if not self._fetching and self._clock.now() >= self._next_at:
            self._fetching = True
            threading.Thread(target=self._fetch, name=f"{self.source.cloud}-prices", daemon=True).start()

    def _fetch(self) -> None:
        """Fetch every old region, in parallel. A region whose fetch fails keeps its offers."""
        regions: Sequence[str] = ()
        failures: dict[str, Exception] = {}
        try:
            regions = self._update_regions()
            with ThreadPoolExecutor(MAX_CONCURRENT_REGIONS, thread_name_prefix=f"{self.source.cloud}-prices") as pool:
                for region, future in [(region, pool.submit(self._fetch_one, region)) for region in regions]:
                    try:
                        future.result()
                    except Exception as error:  # noqa: BLE001 - one region's failure must not affect the others
                        failures[region] = error
                        self._warn(error, region=region)
            self._load_cached()
        except Exception as error:  # noqa: BLE001 - `offers` raises it
            failures[""] = error
            self._warn(error)
        finally:
            self._finish_fetch(regions, failures)

    def _update_regions(self) -> Sequence[str]:
        regions = self.source.regions()
        with self._condition:
            self._regions_in_use = frozenset(regions)
            self._regions = {region: known for region, known in self._regions.items() if region in self._regions_in_use}
        return regions

    def _fetch_one(self, region: str) -> None:
        """Fetch the region unless it is recent, or another controller is fetching it."""
        now = self._clock.now()
        with self._condition:
            known = self._regions.get(region)
        if known is not None and now - known[0].fetched_at < _REFETCH_AGE_S:
            return
        if not self._cache.claim(self.source.cloud, region, age_s=_REFETCH_AGE_S):
            return
        catalog = self.source.crawl(region, now)
        offers = tuple(self._offers_of(region, catalog))
        stamp = self._cache.store(self.source.cloud, region, to_json(catalog))
        with self._condition:
            self._install(region, RegionFetch(now, self._cache.owner, frozenset(catalog.table_priced)), offers)
            if stamp is not None:
                self._stamps[region] = stamp

    def _finish_fetch(self, regions: Sequence[str], failures: dict[str, Exception]) -> None:
        with self._condition:
            now = self._clock.now()
            self._failures = failures
            # A region that another controller is fetching is checked again soon.
            due = [self._regions[r][0].fetched_at + MAX_AGE_S if r in self._regions else now + TICK_S for r in regions]
            self._next_at = now + RETRY_AFTER_FAILURE_S if failures else min([*due, now + MAX_AGE_S])
            self._fetching = False
            self._rebuild_offers()
            self._condition.notify_all()

    def _load_cached(self) -> None:
        """Load newer entries from the cache. An unreadable entry counts as missing."""
        with self._condition:
            stamps = dict(self._stamps)
        entries = self._cache.load(self.source.cloud, stamps)
        decoded = [(entry, self._decode(entry)) for entry in entries]
        with self._condition:
            is_first = self._offers is None
            for entry, decoded_entry in decoded:
                self._stamps[entry.region] = entry.stamp
                if decoded_entry is not None and (self._regions_in_use is None or entry.region in self._regions_in_use):
                    self._install(entry.region, *decoded_entry)
            if is_first:
                self._rebuild_offers()
                if self._regions_in_use is not None and self._regions_in_use <= self._regions.keys():
                    self._next_at = MAX_AGE_S + min(fetched.fetched_at for fetched, _ in self._regions.values())

    def _decode(self, entry: CachedRegion) -> tuple[RegionFetch, tuple[Offer, ...]] | None:
        try:
            catalog = from_json(entry.payload)
            fetched = RegionFetch(entry.fetched_at, entry.fetched_by, frozenset(catalog.table_priced))
            return fetched, tuple(self._offers_of(entry.region, catalog))
        except ValueError as error:
            log.warning("cloud.offers_cache_invalid", cloud=self.source.cloud, region=entry.region, error=str(error))
            return None

    def _install(self, region: str, fetched: RegionFetch, offers: tuple[Offer, ...]) -> None:
        known = self._regions.get(region)
        if known is not None and fetched.fetched_at < known[0].fetched_at:
            return
        if known is not None and known[1] == offers:
            offers = known[1]  # keep the same objects: comparing them is cheap
        self._regions[region] = (fetched, offers)
        self._rebuild_offers()

    def _warn(self, error: Exception, **where: str) -> None:
        log.warning("cloud.prices_failed", cloud=self.source.cloud, error=self.source.classify(error).message, **where)

    # ---- offers ----

    def _rebuild_offers(self) -> None:
        parts = {region: offers for region, (_, offers) in self._regions.items()}
        # Before the cloud has listed its regions: those in the cache, which an earlier daemon fetched.
        used = self._regions_in_use or self._regions.keys() or self.source.fallback_regions
        if self.source.fallback is not None and not self._is_opted_out(""):
            for region in used:
                if region not in parts and not self._is_opted_out(region):
                    parts[region] = self._fallback_offers_of(region, self.source.fallback)
        self._offers = tuple(offer for region in sorted(parts) for offer in parts[region])

    def _fallback_offers_of(self, region: str, table: Callable[[str], RegionCatalog]) -> tuple[Offer, ...]:
        if region not in self._fallback_offers:
            self._fallback_offers[region] = tuple(self._offers_of(region, table(region)))
        return self._fallback_offers[region]

    def _is_opted_out(self, region: str) -> bool:
        error = self._failures.get(region)
        return error is not None and self.source.classify(error).kind in _OPTED_OUT

    def _offers_of(self, region: str, catalog: RegionCatalog) -> Iterator[Offer]:
        """Skips a type without a price or without known hardware."""
        for zone, types in catalog.zones.items():
            for name, spot_price in types.items():
                table_type = self.source.types.get(name)
                shape = catalog.shapes.get(name) or table_type
                on_demand = catalog.on_demand.get(name) or (
                    self.source.on_demand(table_type, region) if table_type else None
                )
                if shape is None or on_demand is None:
                    continue
                on_demand_offer = None if name in catalog.spot_only else on_demand
                for market, price in ((Market.SPOT, spot_price), (Market.ON_DEMAND, on_demand_offer)):
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
class HasPriceList(Protocol):
    """A cloud whose offers come from a `PriceList`."""

    prices: PriceList
