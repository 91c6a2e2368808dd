"""Price lists: before the first fetch, after a restart, with several controllers, and after failures."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, update

from perdure.controller.clouds.base.protocol import Fault
from perdure.controller.clouds.pricing.cache import InMemoryOfferCache, OfferCache
from perdure.controller.clouds.pricing.price_list import (
    DEMAND_WINDOW_S,
    MAX_AGE_S,
    RETRY_AFTER_FAILURE_S,
    PriceList,
    PriceSource,
)
from perdure.controller.clouds.pricing.region_catalog import InstanceType, RegionCatalog, Shape, from_json, to_json
from perdure.controller.clouds.pricing.sql_cache import CLAIM_S, SqlOfferCache
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.store.engine.database import open_database
from perdure.controller.store.records import offers as stored
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market
from perdure.recovery.reasons import Reason

WAIT_S = 20.0
TYPES = {"small": InstanceType("small", 2, 8, 0.1), "big": InstanceType("big", 8, 32, 0.4, ("T4", 1.0))}
REGIONS = ("east", "west")


class Refusal(Exception):
    """An error of the cloud, which means `kind`."""

    def __init__(self, kind: FaultKind) -> None:
        super().__init__(str(kind))
        self.kind = kind


class Seller:
    """A cloud with the same `catalog` in every region. Counts fetches, and blocks them while `gate` is closed."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.price = 0.03
        self.refusal: dict[str, FaultKind] = {}
        self.arrived = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def crawl(self, region: str, _now: float) -> RegionCatalog:
        self.asked[region] += 1
        self.arrived.release()
        assert self.gate.wait(WAIT_S)
        if region in self.refusal:
            raise Refusal(self.refusal[region])
        return RegionCatalog({f"{region}-1": {"small": self.price, "big": None, "new": 0.5}}, {"new": 2.0, "lost": 1.0})

    def source(self, **changes: Any) -> PriceSource:
        source = PriceSource(
            "any",
            TYPES,
            regions=lambda: REGIONS,
            crawl=self.crawl,
            on_demand=lambda kind, _region: kind.price_per_hour,
            classify=lambda error: Fault(error.kind, Reason.NO_CAPACITY, "", str(error)),  # type: ignore[attr-defined]
            fallback=lambda region: RegionCatalog({f"{region}-{zone}": dict.fromkeys(TYPES, 0.05) for zone in "12"}),
            fallback_regions=(*REGIONS, "closed"),
            catalog_month="2025-12",
        )
        return replace(source, **changes)


@pytest.fixture
def seller() -> Seller:
    return Seller()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{tmp_path / 'a.db'}")
    yield engine
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite")
        return
    engine = open_database(request.getfixturevalue("postgres").new_database())
    yield engine
    engine.dispose()


def prices_of(prices: PriceList) -> set[tuple[str, str, str, float]]:
    return {(o.zone, o.instance_type, o.market.value, o.price_per_hour) for o in prices.offers()}


def prices_in(region: str, price: float = 0.03) -> set[tuple[str, str, str, float]]:
    small = {(f"{region}-1", "small", "spot", price), (f"{region}-1", "small", "on-demand", 0.1)}
    return small | {(f"{region}-1", "big", "on-demand", 0.4)}


# ---- the table ----


def test_offers__come_from_the_table_until_the_first_fetch(seller: Seller, clock: ManualClock) -> None:
    prices = PriceList(seller.source(), InMemoryOfferCache(clock), clock)
    seller.gate.clear()
    first = prices.offers()
    assert {o.region for o in first} == {*REGIONS, "closed"}
    assert {o.price_per_hour for o in first if o.market is Market.SPOT} == {0.05}
    assert not prices.fetched()
    assert prices.notes() == ()
    table = "any could not be asked what it offers, so a built-in table of 2025-12 was used: "
    assert prices.table_in_use() == f"{table}it has not answered yet"
    seller.gate.set()
    prices.refresh(WAIT_S)
    assert prices.table_in_use() is None
    assert prices_of(prices) == prices_in("east") | prices_in("west"), "a region that the account does not have is gone"
    assert set(prices.fetched()) == set(REGIONS)


def test_offers__come_from_the_table_for_configured_regions_only(seller: Seller, clock: ManualClock) -> None:
    seller.gate.clear()
    prices = PriceList(seller.source(only=("east",), regions=lambda: ("east",)), InMemoryOfferCache(clock), clock)
    assert {o.region for o in prices.offers()} == {"east"}
    seller.gate.set()
    prices.refresh(WAIT_S)


def of_west(region: str) -> RegionCatalog:
    return RegionCatalog({"west-1": {"small": 0.05}} if region == "west" else {})


@pytest.mark.parametrize(
    "fallback", [None, lambda _region: RegionCatalog({}), of_west], ids=["none", "of none", "not of all"]
)
def test_offers__wait_for_the_first_fetch_without_a_table(
    seller: Seller, clock: ManualClock, fallback: Callable[[str], RegionCatalog] | None
) -> None:
    """A job that needs that region would otherwise find no offers."""
    prices = PriceList(seller.source(fallback=fallback, only=REGIONS), InMemoryOfferCache(clock), clock)
    assert prices_of(prices) == prices_in("east") | prices_in("west")


def test_offers__include_a_type_that_the_table_lacks_with_shape_and_price(seller: Seller, clock: ManualClock) -> None:
    def crawl(region: str, now: float) -> RegionCatalog:
        return replace(seller.crawl(region, now), shapes={"new": Shape(96, 512, ("B200", 8.0)), "small": Shape(3, 9)})

    prices = PriceList(seller.source(crawl=crawl, regions=lambda: ["east"]), InMemoryOfferCache(clock), clock)
    prices.refresh(WAIT_S)
    new = {o.market: o for o in prices.offers() if o.instance_type == "new"}
    assert (new[Market.SPOT].price_per_hour, new[Market.ON_DEMAND].price_per_hour) == (0.5, 2.0)
    assert (new[Market.SPOT].vcpus, new[Market.SPOT].memory_gib) == (96, 512)
    assert new[Market.SPOT].accelerators == ("B200", 8.0)
    assert {o.vcpus for o in prices.offers() if o.instance_type == "small"} == {3}, "the list of the cloud wins"


def test_offers__keep_spot_only_types_and_table_prices_after_a_restart(seller: Seller, clock: ManualClock) -> None:
    def crawl(region: str, now: float) -> RegionCatalog:
        return replace(seller.crawl(region, now), spot_only=["small"], table_priced=["big"])

    source, cache = seller.source(crawl=crawl, regions=lambda: ["east"], only=("east",)), InMemoryOfferCache(clock)
    PriceList(source, cache, clock).refresh(WAIT_S)
    for prices in (PriceList(source, cache, clock), PriceList(source, cache, clock)):
        small = [o for o in prices.offers() if o.instance_type == "small"]
        assert [(o.market, o.on_demand_price_per_hour) for o in small] == [(Market.SPOT, 0.1)]
        assert prices.fetched()["east"].table_priced == {"big"}
    assert seller.asked["east"] == 1


# ---- failures ----


@pytest.mark.parametrize(
    ("kind", "is_offered"),
    [
        (FaultKind.RETRY_LATER, True),
        (FaultKind.AMBIGUOUS, True),
        (FaultKind.AVOID_REGION, False),
        (FaultKind.AVOID_CLOUD, False),
    ],
)
def test_offers__fall_back_to_the_table_unless_a_region_is_opted_out(
    seller: Seller, clock: ManualClock, kind: FaultKind, is_offered: bool
) -> None:
    seller.refusal = {"west": kind}
    prices = PriceList(seller.source(), InMemoryOfferCache(clock), clock)
    prices.refresh(WAIT_S)
    assert prices_in("east") <= prices_of(prices)
    assert ("west" in {o.region for o in prices.offers()}) == is_offered
    assert (prices.table_in_use() is not None) == is_offered
    assert "the last update failed" in prices.notes()[0]


def test_notes__say_that_the_table_is_used_after_a_failure(seller: Seller, clock: ManualClock) -> None:
    seller.refusal = dict.fromkeys(REGIONS, FaultKind.RETRY_LATER)
    prices = PriceList(seller.source(), InMemoryOfferCache(clock), clock)
    prices.refresh(WAIT_S)
    assert prices.notes() == (prices.table_in_use(),)
    assert str(prices.table_in_use()).endswith(f"so a built-in table of 2025-12 was used: {FaultKind.RETRY_LATER}")


def test_offers__raise_the_error_if_there_are_none(seller: Seller, clock: ManualClock) -> None:
    seller.refusal = dict.fromkeys(REGIONS, FaultKind.AVOID_CLOUD)
    prices = PriceList(seller.source(), InMemoryOfferCache(clock), clock)
    prices.refresh(WAIT_S)
    with pytest.raises(Refusal):
        prices.offers()
    seller.refusal.clear()
    clock.advance(RETRY_AFTER_FAILURE_S)
    prices.refresh(WAIT_S)
    assert prices_of(prices) == prices_in("east") | prices_in("west")


def test_offers__stay_after_a_failed_fetch(seller: Seller, clock: ManualClock) -> None:
    prices = PriceList(seller.source(), InMemoryOfferCache(clock), clock)
    prices.refresh(WAIT_S)
    before = prices.offers()
    seller.refusal = dict.fromkeys(REGIONS, FaultKind.AVOID_CLOUD)
    clock.advance(MAX_AGE_S)
    prices.refresh(WAIT_S)
    assert prices.offers() == before
    assert "10 min ago; the last update failed" in prices.notes()[0]


# ---- the ticker ----


def test_refresh__fetches_only_while_there_is_demand(seller: Seller, clock: ManualClock) -> None:
    prices = PriceList(seller.source(), InMemoryOfferCache(clock), clock)
    prices.refresh()
    assert not seller.asked, "no caller requested it"
    prices.refresh(WAIT_S)
    clock.advance(MAX_AGE_S)
    seller.price = 0.04
    prices.refresh()
    prices.refresh(WAIT_S)
    assert seller.asked == dict.fromkeys(REGIONS, 2)
    assert prices_in("east", 0.04) <= prices_of(prices)
    clock.advance(DEMAND_WINDOW_S + 1)
    prices.refresh()
    assert seller.asked == dict.fromkeys(REGIONS, 2)


# ---- the database ----


def test_offers__are_loaded_from_the_database_by_a_new_daemon(
    seller: Seller, clock: ManualClock, database: Engine
) -> None:
    PriceList(seller.source(), SqlOfferCache(database, clock, "one", alone=True), clock).refresh(WAIT_S)
    clock.advance(60)
    next_one = PriceList(seller.source(), SqlOfferCache(database, clock, "two", alone=True), clock)
    assert prices_of(next_one) == prices_in("east") | prices_in("west")
    assert {fetched.fetched_by for fetched in next_one.fetched().values()} == {"one"}
    next_one.refresh(WAIT_S)
    assert seller.asked == dict.fromkeys(REGIONS, 1)


def test_claim__makes_several_controllers_fetch_once(seller: Seller, clock: ManualClock, database: Engine) -> None:
    one, *others = (
        PriceList(seller.source(), SqlOfferCache(database, clock, name, alone=False), clock) for name in ("a", "b", "c")
    )
    seller.gate.clear()
    one.offers()
    assert all(seller.arrived.acquire(timeout=WAIT_S) for _ in REGIONS)
    for prices in others:
        prices.refresh(WAIT_S)
        assert not prices.fetched(), "they find both regions claimed"
    seller.gate.set()
    one.refresh(WAIT_S)
    for prices in others:
        prices.refresh()
        assert prices_of(prices) == prices_in("east") | prices_in("west")
        assert {fetched.fetched_by for fetched in prices.fetched().values()} == {"a"}
    assert seller.asked == dict.fromkeys(REGIONS, 1)


def test_claim__expires(clock: ManualClock, sqlite: Engine) -> None:
    one, other = (SqlOfferCache(sqlite, clock, name, alone=False) for name in ("one", "other"))
    assert one.claim("any", "east", age_s=MAX_AGE_S)
    assert one.claim("any", "east", age_s=MAX_AGE_S), "the daemon holds the claim itself"
    assert not other.claim("any", "east", age_s=MAX_AGE_S)
    assert other.claim("any", "west", age_s=MAX_AGE_S)
    clock.advance(CLAIM_S + 1)
    assert other.claim("any", "east", age_s=MAX_AGE_S)
    other.store("any", "east", to_json(RegionCatalog({})))
    assert not one.claim("any", "east", age_s=MAX_AGE_S), "it is recent"
    clock.advance(MAX_AGE_S)
    assert one.claim("any", "east", age_s=MAX_AGE_S)


def test_claim__of_a_dead_daemon_is_free_for_the_only_controller(clock: ManualClock, sqlite: Engine) -> None:
    for name in ("one", "next"):
        assert SqlOfferCache(sqlite, clock, name, alone=True).claim("any", "east", age_s=MAX_AGE_S)


@pytest.mark.parametrize("row", [{}, {"zones": {"east-1": 3}, "on_demand": {}, "shapes": {}}, {"offers": []}])
def test_offers__ignore_an_invalid_cache_entry(
    seller: Seller, clock: ManualClock, sqlite: Engine, row: dict[str, Any]
) -> None:
    cache = SqlOfferCache(sqlite, clock, "one", alone=True)
    PriceList(seller.source(), cache, clock).refresh(WAIT_S)
    with sqlite.begin() as conn:
        conn.execute(update(stored.RegionOffers).values(payload=row))
    seller.gate.clear()
    prices = PriceList(seller.source(), cache, clock)
    assert {o.price_per_hour for o in prices.offers() if o.market is Market.SPOT} == {0.05}, "the price of the table"
    seller.gate.set()
    prices.refresh(WAIT_S)


def test_offers__fall_back_to_the_cloud_and_the_table_without_a_database(
    seller: Seller, clock: ManualClock, tmp_path: Path
) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'a.db'}")
    with database.begin() as conn:
        stored.RegionOffers.drop(conn)
    prices = PriceList(seller.source(), SqlOfferCache(database, clock, "one", alone=True), clock)
    seller.gate.clear()
    assert {o.price_per_hour for o in prices.offers() if o.market is Market.SPOT} == {0.05}
    seller.gate.set()
    prices.refresh(WAIT_S)
    assert prices_of(prices) == prices_in("east") | prices_in("west")
    database.dispose()


def test_region_catalog__survives_json() -> None:
    sold = RegionCatalog({"z": {"a": None, "b": 0.25}}, {"a": 1.5}, {"a": Shape(4, 16, ("T4", 1.0)), "b": Shape(2, 8)})
    assert from_json(to_json(sold)) == sold


def test_offer_caches__implement_the_protocol(clock: ManualClock, database: Engine) -> None:
    caches: list[OfferCache] = [InMemoryOfferCache(clock, "me"), SqlOfferCache(database, clock, "me", alone=True)]
    for cache in caches:
        stamp = cache.store("any", "east", {"x": 1})
        assert stamp is not None
        (page,) = cache.load("any", {})
        assert (page.region, page.fetched_by, page.payload, page.stamp) == ("east", "me", {"x": 1}, stamp)
        assert page.fetched_at == pytest.approx(clock.now(), abs=5.0)
        assert not cache.load("any", {"east": stamp})
        assert not cache.load("other", {})
        assert not cache.claim("any", "east", age_s=MAX_AGE_S)
