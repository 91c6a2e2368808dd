"""What a controller learns of offers outlives it; work that was saved is counted, whoever is in charge."""

from __future__ import annotations

from typing import Any

from perdure.recovery import events
from perdure.recovery.job import Recovery


def test_the_next_controller_knows_the_history_of_offers(world: Any) -> None:
    job = world.submit()
    world.run(job)
    world.pass_time(60)
    world.cloud.preempt(world.living()[0])
    world.tell(job, events.NodeSilent(0, 1, 0))
    before = world.reconciler._market.view().history
    (lost,) = [key for key, track in before.tracks.items() if not track.available]
    assert before.volatility(lost, world.clock.now()) > 1
    assert before.start_ups.count == 1
    world.restart()
    assert world.reconciler._market.view().history == before


def test_saved_work_survives_a_restart(world: Any) -> None:
    asked = Recovery("DEADLINE", deadline_at=world.clock.now() + 9e4, work_s=3600.0)
    job = world.submit(recovery=asked)
    world.run(job)
    world.pass_time(100)
    world.tell(job, events.Saved(0, 1, at=world.clock.now() - 20))
    saved = world.view(job).tasks[0].durable_s
    assert 70 < saved <= 81
    world.restart()
    assert world.reconciler.view(job).tasks[0].durable_s == saved
    assert world.view(job).tasks[0].recovery == asked


def test_a_recommendation_to_leave_is_evidence_and_no_order(world: Any) -> None:
    job = world.submit()
    world.run(job)
    offer = world.view(job).tasks[0].attempts[0].offer
    before = world.reconciler._market.view().history.volatility(offer.key, world.clock.now())
    world.reconciler.at_risk((job, 0, 1), 0)
    world.pass_time(1)
    assert world.reconciler._market.view().history.volatility(offer.key, world.clock.now()) > before
    assert [a.generation for a in world.view(job).tasks[0].attempts] == [1]
    assert "node.at_risk" in world.kinds(job)
