"""What every cloud must do, whoever sells it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from perdure.controller.clouds.base import Cloud, InstanceState, Interruptible, Owner
from perdure.recovery.market import FaultKind, Market
from perdure.recovery.reasons import Reason

if TYPE_CHECKING:
    Bench = Any


def refused(bench: Bench, request: Any) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one it is, is the cloud's affair
        bench.cloud.launch(request)
    return caught.value


def test_it_is_usable(bench: Bench) -> None:
    cloud: Cloud = bench.cloud
    assert cloud.unusable() is None


def test_prices_are_positive_and_spot_is_cheaper(bench: Bench) -> None:
    offers = bench.cloud.offers()
    assert offers
    on_demand = {(o.zone, o.instance_type): o.price_per_hour for o in offers if o.market is Market.ON_DEMAND}
    spot = {(o.zone, o.instance_type): o.price_per_hour for o in offers if o.market is Market.SPOT}
    assert on_demand.keys() <= spot.keys(), "a few are sold as spot alone"
    assert all(0 < o.price_per_hour < o.on_demand_price_per_hour for o in offers if o.market is Market.SPOT)
    assert all(
        o.on_demand_price_per_hour == on_demand.get((o.zone, o.instance_type), o.on_demand_price_per_hour)
        for o in offers
    )
    assert {o.cloud for o in offers} == {bench.cloud.name}


def test_offers_are_named_once_and_places_differ_in_price(bench: Bench) -> None:
    offers = bench.cloud.offers()
    assert len({o.key for o in offers}) == len(offers)
    first = offers[0]
    same = [o for o in offers if (o.instance_type, o.market) == (first.instance_type, first.market)]
    prices = {o.region: o.price_per_hour for o in same}
    assert len(prices) == len(set(prices.values())) > 1


def test_a_launch_gives_machines_that_are_described_and_listed(bench: Bench) -> None:
    launched = bench.launch("t1", nodes=2)
    assert [i.rank for i in sorted(launched, key=lambda i: i.rank)] == [0, 1]
    addresses = [i.ip for i in launched if i.ip is not None]  # which some clouds tell later, or not at all
    assert len({i.id for i in launched}) == 2
    assert len(set(addresses)) == len(addresses)
    seen = bench.see(launched)
    offer = bench.offer()
    for machine in seen:
        assert machine.state is InstanceState.RUNNING
        assert (machine.cloud, machine.region, machine.zone) == (offer.cloud, offer.region, offer.zone)
        assert machine.instance_type == offer.instance_type
        assert machine.launched_at is not None
        assert machine.ended_at is None
        assert machine.gone_reason is None
    assert sorted(bench.cloud.list_owned("ctl-1"), key=lambda i: i.rank) == seen


def test_the_owner_comes_back_whole(bench: Bench) -> None:
    launched = bench.launch("t1")
    assert bench.see(launched)[0].owner == Owner("ctl-1", job_id=7, task=1, generation=3, token="t1")


def test_a_token_buys_once(bench: Bench) -> None:
    first = bench.launch("t1", nodes=2)
    second = bench.launch("t1", nodes=2)
    assert {i.id for i in first} == {i.id for i in second}
    assert len(bench.cloud.list_owned("ctl-1")) == 2


def test_a_token_buys_once_even_after_the_machines_ended(bench: Bench) -> None:
    first = bench.launch("t1")
    bench.end(first)
    again = bench.launch("t1")
    assert [(i.id, i.state) for i in again] == [(first[0].id, InstanceState.GONE)]
    assert not bench.cloud.list_owned("ctl-1")


def test_a_token_gives_what_it_bought_though_the_zone_is_full_by_now(bench: Bench) -> None:
    first = bench.launch("t1")
    bench.limit(bench.offer().zone, 0)
    assert [i.id for i in bench.launch("t1")] == [first[0].id]


def test_tokens_do_not_share_machines(bench: Bench) -> None:
    assert bench.launch("t1")[0].id != bench.launch("t2")[0].id


def test_all_or_none(bench: Bench) -> None:
    bench.limit(bench.offer().zone, 2)
    error = refused(bench, bench.request("t1", nodes=3))
    assert bench.cloud.classify(error).kind is FaultKind.AVOID_ZONE
    assert not bench.cloud.list_owned("ctl-1")
    assert len(bench.launch("t2", nodes=2)) == 2


def test_no_capacity_is_about_the_zone_alone(bench: Bench) -> None:
    offer = bench.offer()
    bench.limit(offer.zone, 0)
    fault = bench.cloud.classify(refused(bench, bench.request("t1")))
    assert (fault.kind, fault.reason) == (FaultKind.AVOID_ZONE, Reason.NO_CAPACITY)
    assert not fault.whole_region
    assert not fault.whole_cloud
    assert fault.code
    assert offer.zone in fault.message
    assert fault.retry_after_s is None or fault.retry_after_s > 0
    elsewhere = next(o for o in bench.cloud.offers() if o.zone != offer.zone)
    assert bench.cloud.launch(bench.request("t2", offer=elsewhere))


def test_a_refused_token_may_be_tried_again(bench: Bench) -> None:
    zone = bench.offer().zone
    bench.limit(zone, 0)
    refused(bench, bench.request("t1"))
    bench.limit(zone, 1)
    assert bench.launch("t1")[0].state is InstanceState.RUNNING


def test_capacity_comes_back_when_machines_end(bench: Bench) -> None:
    bench.limit(bench.offer().zone, 1)
    bench.end(bench.launch("t1"))
    assert bench.launch("t2")


def test_what_is_not_sold_is_not_bought(bench: Bench) -> None:
    request = bench.request("t1", offer=replace(bench.offer(), instance_type="no-such-type"))
    fault = bench.cloud.classify(refused(bench, request))
    assert fault.kind in (FaultKind.GIVE_UP, FaultKind.AVOID_ZONE)
    assert not bench.cloud.list_owned("ctl-1")


@pytest.mark.parametrize("error", [ConnectionError("reset"), TimeoutError(), RuntimeError("?")], ids=repr)
def test_an_unknown_error_may_have_happened(bench: Bench, error: Exception) -> None:
    assert bench.cloud.classify(error).kind is FaultKind.FIND_OUT


def test_unknown_machines_are_not_described(bench: Bench) -> None:
    region = bench.offer().region
    assert not bench.cloud.describe(region, ["no-such-machine"])
    assert not bench.cloud.describe(region, [])
    launched = bench.launch("t1")
    elsewhere = next(o.region for o in bench.cloud.offers() if o.region != region)
    assert not bench.cloud.describe(elsewhere, [launched[0].id])


@pytest.mark.parametrize("odd", ["", ".", "..", "../x", "/etc", "a/b", ".new-1"])
def test_an_odd_id_is_just_unknown(bench: Bench, odd: str) -> None:
    region = bench.offer().region
    bench.launch("t1")
    assert not bench.cloud.describe(region, [odd])
    bench.cloud.terminate(region, [odd])


def test_terminate_ends_and_billing_stops(bench: Bench) -> None:
    gone = bench.end(bench.launch("t1", nodes=2))
    assert len(gone) == 2
    for machine in gone:
        assert machine.state is InstanceState.GONE
        assert machine.launched_at is not None
        assert machine.ended_at is not None
        assert machine.launched_at <= machine.ended_at
        assert machine.gone_reason not in (None, Reason.PREEMPTED)
    assert not bench.cloud.list_owned("ctl-1")


def test_terminate_again_or_what_is_unknown_is_a_success(bench: Bench) -> None:
    launched = bench.launch("t1")
    ids = [launched[0].id, "no-such-machine"]
    bench.cloud.terminate(launched[0].region, ids)
    bench.cloud.terminate(launched[0].region, ids)
    gone = bench.until_gone(launched)
    bench.cloud.terminate(launched[0].region, ids)
    assert bench.see(launched) == gone


def test_a_region_ends_only_its_own_machines(bench: Bench) -> None:
    launched = bench.launch("t1")
    elsewhere = next(o.region for o in bench.cloud.offers() if o.region != launched[0].region)
    bench.cloud.terminate(elsewhere, [launched[0].id])
    bench.wait()
    assert bench.see(launched)[0].state is InstanceState.RUNNING


def test_only_ones_own_machines_are_listed(bench: Bench) -> None:
    mine = bench.launch("t1", controller="ctl-1")
    theirs = bench.launch("t2", controller="ctl-2")
    assert [i.id for i in bench.cloud.list_owned("ctl-1")] == [mine[0].id]
    assert [i.id for i in bench.cloud.list_owned("ctl-2")] == [theirs[0].id]
    assert not bench.cloud.list_owned("ctl-3")


def test_an_interruption_without_notice(bench: Bench) -> None:
    if not isinstance(bench.cloud, Interruptible):
        pytest.skip("this cloud can not rehearse an interruption")
    launched = bench.launch("t1", nodes=2)
    bench.cloud.interrupt(launched[0].region, launched[0].id, notice_s=None)
    gone = bench.until_gone(launched[:1])
    assert gone[0].gone_reason is Reason.PREEMPTED
    assert bench.see(launched[1:])[0].state is InstanceState.RUNNING


def test_an_interruption_with_notice_waits_for_its_deadline(bench: Bench) -> None:
    if not isinstance(bench.cloud, Interruptible):
        pytest.skip("this cloud can not rehearse an interruption")
    launched = bench.launch("t1")
    bench.cloud.interrupt(launched[0].region, launched[0].id, notice_s=1.5)
    assert bench.see(launched)[0].state in (InstanceState.RUNNING, InstanceState.ENDING)
    gone = bench.until_gone(launched)
    assert gone[0].gone_reason is Reason.PREEMPTED
    assert gone[0].ended_at is not None
    assert gone[0].ended_at - launched[0].launched_at >= 1.5


def test_what_does_not_live_is_not_interrupted(bench: Bench) -> None:
    if not isinstance(bench.cloud, Interruptible):
        pytest.skip("this cloud can not rehearse an interruption")
    launched = bench.launch("t1")
    bench.end(launched)
    for id in (launched[0].id, "no-such-machine"):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            bench.cloud.interrupt(launched[0].region, id, notice_s=None)
        assert bench.cloud.classify(caught.value).kind is FaultKind.GIVE_UP
