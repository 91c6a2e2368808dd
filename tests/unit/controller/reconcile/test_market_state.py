"""What the market state learns from jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.controller.reconcile.market_state import load_market
from perdure.recovery import events
from perdure.recovery.market.view import Offer
from unit.controller.world import World


def test_history__survives_a_restart(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.pass_time(60)
    world.cloud.preempt(world.living()[0])
    world.deliver(job, events.NodeDisconnected(0, 1, 0))
    before = world.market.view().history
    (lost,) = [key for key, track in before.tracks.items() if not track.available]
    assert before.volatility(lost, world.clock.now()) > 1
    assert before.startup_times.count == 1
    world.restart()
    assert world.market.view().history == before


def test_rebalance_recommendation__raises_volatility_and_moves_no_job(world: World) -> None:
    job = world.submit()
    world.run(job)
    offer = world.view(job).tasks[0].attempts[0].offer
    before = world.market.view().history.volatility(offer.key, world.clock.now())
    world.inbox.recommend_rebalance((job, 0, 1), 0, confirmed=True)
    world.pass_time(1)
    assert world.market.view().history.volatility(offer.key, world.clock.now()) > before
    assert [a.generation for a in world.view(job).tasks[0].attempts] == [1]
    assert "node.rebalance_recommended" in world.kinds(job)


class TablePrices:
    """A price list whose cloud has not answered."""

    def table_in_use(self) -> str:
        return "fake could not be asked"


def test_view__names_clouds_whose_offers_are_a_tables(world: World) -> None:
    assert world.market.view().unconfirmed == {}
    world.cloud.prices = TablePrices()
    world.pass_time(60)
    assert world.market.view().unconfirmed == {"fake": "fake could not be asked"}


def test_rebalance_recommendation__of_a_node_alone_counts_for_its_own_job(world: World) -> None:
    job, other = world.submit(), world.submit()
    world.run(job)
    offer, now = world.view(job).tasks[0].attempts[0].offer, world.clock.now()
    before = world.market.view(other).history.volatility(offer.key, now)
    world.inbox.recommend_rebalance((job, 0, 1), 0, confirmed=False)
    world.pass_time(1)
    assert world.market.view(other).history.volatility(offer.key, now) == before
    assert world.market.view(job).history.volatility(offer.key, now) > before
    assert "node.rebalance_recommended" in world.kinds(job)


def is_avoided(world: World, offer: Offer, job: int | None) -> bool:
    now = world.clock.now()
    return any(u.until > now and u.covers(offer) for u in world.market.view(job).unavailable)


@pytest.mark.parametrize("restarts", [False, True])
def test_loss__that_only_the_node_reports_counts_for_its_own_job(world: World, restarts: bool) -> None:
    job, other = world.submit(), world.submit()
    world.run(job)
    offer = world.view(job).tasks[0].attempts[0].offer
    history = world.market.view(other).history
    world.deliver(job, events.PreemptionNotice(0, 1, 0, world.clock.now() + 120))
    lost = world.market.view(job).history.track(offer.key)
    assert lost is not None
    assert not lost.available
    assert world.market.view(other).history.track(offer.key) == history.track(offer.key)
    if restarts:
        world.restart()
    assert is_avoided(world, offer, job)
    assert not is_avoided(world, offer, other)
    assert not is_avoided(world, offer, None)
    assert all(u.unconfirmed for u in world.market.view(job).unavailable if u.from_preemption)


def test_loss__counts_for_every_job_once_the_cloud_confirms_it(world: World) -> None:
    job, other = world.submit(), world.submit()
    world.run(job)
    offer = world.view(job).tasks[0].attempts[0].offer
    notice = events.PreemptionNotice(0, 1, 0, world.clock.now() + 120)
    world.deliver(job, notice)
    assert not is_avoided(world, offer, other)
    world.deliver(job, replace(notice, confirmed=True))
    assert is_avoided(world, offer, other)
    assert is_avoided(world, offer, None)
    assert world.market.view(job).history == world.market.view(other).history, "the loss counts once"
    world.restart()
    assert is_avoided(world, offer, other)


def test_cloud__whose_machines_cannot_reach_the_controller_is_not_used(world: World) -> None:
    reason = "its machines cannot reach this controller at http://127.0.0.1:1"
    market = load_market({"fake": world.cloud}, world.clock, world.database, unreachable={"fake": reason})
    assert market.unusable(world.cloud) == reason
    assert market.view().disabled == {"fake": reason}
    assert market.view().offers == ()
