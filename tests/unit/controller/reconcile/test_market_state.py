"""What the market state learns from jobs."""

from __future__ import annotations

from perdure.recovery import events
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
    world.inbox.recommend_rebalance((job, 0, 1), 0)
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
