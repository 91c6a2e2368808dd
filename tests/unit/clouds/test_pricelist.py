"""What a cloud sells: before it has told, after a restart, beside other controllers, and in trouble."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, update

from perdure.controller.clock import ManualClock
from perdure.controller.clouds.base import Fault
from perdure.controller.clouds.offercache import InMemory, OfferCache
from perdure.controller.clouds.pricelist import AGE_AFTER_TROUBLE_S, AGE_S, WANTED_S, PriceList, Source
from perdure.controller.clouds.sold import InstanceType, Shape, Sold, read, written
from perdure.controller.fetched import CLAIM_S, DatabaseCache
from perdure.controller.store import fetched as stored
from perdure.controller.store.database import open_database
from perdure.recovery.market import FaultKind, Market
from perdure.recovery.reasons import Reason

WAIT_S = 20.0
TYPES = {"small": InstanceType("small", 2, 8, 0.1), "big": InstanceType("big", 8, 32, 0.4, ("T4", 1.0))}
REGIONS = ("east", "west")


class Refusal(Exception):
    """What the cloud answers; `kind`: what it means."""

    def __init__(self, kind: FaultKind) -> None:
        super().__init__(str(kind))
        self.kind = kind


class Seller:
    """A cloud that sells `sold` in every region, and counts who asks. While `gate` is shut, it does not answer."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.price = 0.03
        self.refusal: dict[str, FaultKind] = {}
        self.arrived = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def crawl(self, region: str, _now: float) -> Sold:
        self.asked[region] += 1
        self.arrived.release()
        assert self.gate.wait(WAIT_S)
        if region in self.refusal:
            raise Refusal(self.refusal[region])
        return Sold({f"{region}-1": {"small": self.price, "big": None, "new": 0.5}}, {"new": 2.0, "lost": 1.0})

    def source(self, **changes: Any) -> Source:
        source = Source(
            "any",
            TYPES,
            regions=lambda: REGIONS,
            crawl=self.crawl,
            on_demand=lambda kind, _region: kind.price_per_hour,
            classify=lambda error: Fault(error.kind, Reason.NO_CAPACITY, "", str(error)),  # type: ignore[attr-defined]
            table=lambda region: Sold({f"{region}-{zone}": dict.fromkeys(TYPES, 0.05) for zone in "12"}),
            table_regions=(*REGIONS, "closed"),
            table_of="2025-12",
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


def told(region: str, price: float = 0.03) -> set[tuple[str, str, str, float]]:
    small = {(f"{region}-1", "small", "spot", price), (f"{region}-1", "small", "on-demand", 0.1)}
    return small | {(f"{region}-1", "big", "on-demand", 0.4)}


# ---- the table ----


def test_nobody_waits_the_table_is_offered_until_the_cloud_has_told(seller: Seller, clock: ManualClock) -> None:
    prices = PriceList(seller.source(), InMemory(clock), clock)
    seller.gate.clear()
    first = prices.offers()
    assert {o.region for o in first} == {*REGIONS, "closed"}
    assert {o.price_per_hour for o in first if o.market is Market.SPOT} == {0.05}
    assert not prices.fetched()
    assert prices.notes() == ()
    seller.gate.set()
    prices.refresh(WAIT_S)
    assert prices_of(prices) == told("east") | told("west"), "a region that the account does not have is gone"
    assert set(prices.fetched()) == set(REGIONS)


def test_only_the_configured_regions_are_of_the_table(seller: Seller, clock: ManualClock) -> None:
    seller.gate.clear()
    prices = PriceList(seller.source(only=("east",), regions=lambda: ("east",)), InMemory(clock), clock)
    assert {o.region for o in prices.offers()} == {"east"}
    seller.gate.set()
    prices.refresh(WAIT_S)


def of_west(region: str) -> Sold:
    return Sold({"west-1": {"small": 0.05}} if region == "west" else {})


@pytest.mark.parametrize("table", [None, lambda _region: Sold({}), of_west], ids=["none", "of none", "not of all"])
def test_without_a_table_the_first_one_waits(
    seller: Seller, clock: ManualClock, table: Callable[[str], Sold] | None
) -> None:
    """A job that wants just that region would find nothing."""
    prices = PriceList(seller.source(table=table, only=REGIONS), InMemory(clock), clock)
    assert prices_of(prices) == told("east") | told("west")


def test_a_type_that_the_table_lacks_is_offered_when_its_shape_and_price_are_told(
    seller: Seller, clock: ManualClock
) -> None:
    def crawl(region: str, now: float) -> Sold:
        return replace(seller.crawl(region, now), shapes={"new": Shape(96, 512, ("B200", 8.0)), "small": Shape(3, 9)})

    prices = PriceList(seller.source(crawl=crawl, regions=lambda: ["east"]), InMemory(clock), clock)
    prices.refresh(WAIT_S)
    new = {o.market: o for o in prices.offers() if o.instance_type == "new"}
    assert (new[Market.SPOT].price_per_hour, new[Market.ON_DEMAND].price_per_hour) == (0.5, 2.0)
    assert (new[Market.SPOT].vcpus, new[Market.SPOT].memory_gib) == (96, 512)
    assert new[Market.SPOT].accelerators == ("B200", 8.0)
    assert {o.vcpus for o in prices.offers() if o.instance_type == "small"} == {3}, "the cloud's word goes first"


def test_what_is_sold_as_spot_alone_and_whose_price_was_not_told_outlive_the_daemon(
    seller: Seller, clock: ManualClock
) -> None:
    def crawl(region: str, now: float) -> Sold:
        return replace(seller.crawl(region, now), spot_only=["small"], by_table=["big"])

    source, cache = seller.source(crawl=crawl, regions=lambda: ["east"], only=("east",)), InMemory(clock)
    PriceList(source, cache, clock).refresh(WAIT_S)
    for prices in (PriceList(source, cache, clock), PriceList(source, cache, clock)):
        small = [o for o in prices.offers() if o.instance_type == "small"]
        assert [(o.market, o.on_demand_price_per_hour) for o in small] == [(Market.SPOT, 0.1)]
        assert prices.fetched()["east"].by_table == {"big"}
    assert seller.asked["east"] == 1


# ---- trouble ----


@pytest.mark.parametrize(
    ("kind", "is_offered"),
    [
        (FaultKind.RETRY_LATER, True),
        (FaultKind.FIND_OUT, True),
        (FaultKind.AVOID_REGION, False),
        (FaultKind.AVOID_CLOUD, False),
    ],
)
def test_the_table_stands_in_for_a_region_that_does_not_answer_but_not_for_one_that_is_shut(
    seller: Seller, clock: ManualClock, kind: FaultKind, is_offered: bool
) -> None:
    seller.refusal = {"west": kind}
    prices = PriceList(seller.source(), InMemory(clock), clock)
    prices.refresh(WAIT_S)
    assert told("east") <= prices_of(prices)
    assert ("west" in {o.region for o in prices.offers()}) == is_offered
    assert "the last try failed" in prices.notes()[0]


def test_what_went_wrong_is_raised_where_nothing_is_offered(seller: Seller, clock: ManualClock) -> None:
    seller.refusal = dict.fromkeys(REGIONS, FaultKind.AVOID_CLOUD)
    prices = PriceList(seller.source(), InMemory(clock), clock)
    prices.refresh(WAIT_S)
    with pytest.raises(Refusal):
        prices.offers()
    seller.refusal.clear()
    clock.advance(AGE_AFTER_TROUBLE_S)
    prices.refresh(WAIT_S)
    assert prices_of(prices) == told("east") | told("west")


def test_what_was_known_stays(seller: Seller, clock: ManualClock) -> None:
    prices = PriceList(seller.source(), InMemory(clock), clock)
    prices.refresh(WAIT_S)
    before = prices.offers()
    seller.refusal = dict.fromkeys(REGIONS, FaultKind.AVOID_CLOUD)
    clock.advance(AGE_S)
    prices.refresh(WAIT_S)
    assert prices.offers() == before
    assert "10 min ago; the last try failed" in prices.notes()[0]


# ---- the ticker ----


def test_the_ticker_keeps_fresh_what_is_wanted_and_leaves_alone_what_nobody_asks_for(
    seller: Seller, clock: ManualClock
) -> None:
    prices = PriceList(seller.source(), InMemory(clock), clock)
    prices.refresh()
    assert not seller.asked, "nobody wants it"
    prices.refresh(WAIT_S)
    clock.advance(AGE_S)
    seller.price = 0.04
    prices.refresh()
    prices.refresh(WAIT_S)
    assert seller.asked == dict.fromkeys(REGIONS, 2)
    assert told("east", 0.04) <= prices_of(prices)
    clock.advance(WANTED_S + 1)
    prices.refresh()
    assert seller.asked == dict.fromkeys(REGIONS, 2)


# ---- the database ----


def test_a_new_daemon_uses_what_the_one_before_it_fetched(seller: Seller, clock: ManualClock, database: Engine) -> None:
    PriceList(seller.source(), DatabaseCache(database, clock, "one", alone=True), clock).refresh(WAIT_S)
    clock.advance(60)
    next_one = PriceList(seller.source(), DatabaseCache(database, clock, "two", alone=True), clock)
    assert prices_of(next_one) == told("east") | told("west")
    assert {fetched.by for fetched in next_one.fetched().values()} == {"one"}
    next_one.refresh(WAIT_S)
    assert seller.asked == dict.fromkeys(REGIONS, 1)


def test_several_controllers_ask_once_between_them(seller: Seller, clock: ManualClock, database: Engine) -> None:
    one, *others = (
        PriceList(seller.source(), DatabaseCache(database, clock, name, alone=False), clock) for name in ("a", "b", "c")
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
        assert prices_of(prices) == told("east") | told("west")
        assert {fetched.by for fetched in prices.fetched().values()} == {"a"}
    assert seller.asked == dict.fromkeys(REGIONS, 1)


def test_a_claim_ends_by_itself(clock: ManualClock, sqlite: Engine) -> None:
    one, other = (DatabaseCache(sqlite, clock, name, alone=False) for name in ("one", "other"))
    assert one.claim("any", "east", age_s=AGE_S)
    assert one.claim("any", "east", age_s=AGE_S), "it is its own"
    assert not other.claim("any", "east", age_s=AGE_S)
    assert other.claim("any", "west", age_s=AGE_S)
    clock.advance(CLAIM_S + 1)
    assert other.claim("any", "east", age_s=AGE_S)
    other.remember("any", "east", written(Sold({})))
    assert not one.claim("any", "east", age_s=AGE_S), "it is fresh"
    clock.advance(AGE_S)
    assert one.claim("any", "east", age_s=AGE_S)


def test_alone_what_a_daemon_that_died_had_claimed_is_free(clock: ManualClock, sqlite: Engine) -> None:
    for name in ("one", "next"):
        assert DatabaseCache(sqlite, clock, name, alone=True).claim("any", "east", age_s=AGE_S)


@pytest.mark.parametrize("row", [{}, {"zones": {"east-1": 3}, "on_demand": {}, "shapes": {}}, {"offers": []}])
def test_a_row_of_another_form_is_as_none(
    seller: Seller, clock: ManualClock, sqlite: Engine, row: dict[str, Any]
) -> None:
    cache = DatabaseCache(sqlite, clock, "one", alone=True)
    PriceList(seller.source(), cache, clock).refresh(WAIT_S)
    with sqlite.begin() as conn:
        conn.execute(update(stored.Fetched).values(told=row))
    seller.gate.clear()
    prices = PriceList(seller.source(), cache, clock)
    assert {o.price_per_hour for o in prices.offers() if o.market is Market.SPOT} == {0.05}, "the table's"
    seller.gate.set()
    prices.refresh(WAIT_S)


def test_without_a_database_the_cloud_is_asked_and_the_table_stands_in(
    seller: Seller, clock: ManualClock, tmp_path: Path
) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'a.db'}")
    with database.begin() as conn:
        stored.Fetched.drop(conn)
    prices = PriceList(seller.source(), DatabaseCache(database, clock, "one", alone=True), clock)
    seller.gate.clear()
    assert {o.price_per_hour for o in prices.offers() if o.market is Market.SPOT} == {0.05}
    seller.gate.set()
    prices.refresh(WAIT_S)
    assert prices_of(prices) == told("east") | told("west")
    database.dispose()


def test_what_is_kept_says_the_same_when_it_is_read() -> None:
    sold = Sold({"z": {"a": None, "b": 0.25}}, {"a": 1.5}, {"a": Shape(4, 16, ("T4", 1.0)), "b": Shape(2, 8)})
    assert read(written(sold)) == sold


def test_caches_are_caches(clock: ManualClock, database: Engine) -> None:
    caches: list[OfferCache] = [InMemory(clock, "me"), DatabaseCache(database, clock, "me", alone=True)]
    for cache in caches:
        stamp = cache.remember("any", "east", {"x": 1})
        assert stamp is not None
        (page,) = cache.recall("any", {})
        assert (page.region, page.by, page.told, page.stamp) == ("east", "me", {"x": 1}, stamp)
        assert page.at == pytest.approx(clock.now(), abs=5.0)
        assert not cache.recall("any", {"east": stamp})
        assert not cache.recall("other", {})
        assert not cache.claim("any", "east", age_s=AGE_S)
