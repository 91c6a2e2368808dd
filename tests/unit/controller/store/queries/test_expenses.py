"""What jobs cost, by hour, user, cloud and job: as the listing says, and read once."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from perdure.controller.store.access import budgets
from perdure.controller.store.queries import expenses
from perdure.controller.store.queries import job_listing as queries
from perdure.controller.store.queries.counts import MARGIN_S
from perdure.controller.store.queries.expenses import HOUR_S, SpendingLedger, SpendingReport, add_up
from perdure.controller.store.records.jobs import Job
from perdure.recovery import events
from perdure.recovery.statuses import NodePhase
from unit.controller.world import World

DAY_S = 86_400.0


def report(world: World, ledger: SpendingLedger, since: float | None = None) -> SpendingReport:
    now = world.clock.now()
    with world.database.connect() as conn:
        return ledger.report(conn, now - DAY_S if since is None else since, now)


def total_of(found: SpendingReport) -> expenses.Spending:
    return add_up([*found.hours.values(), found.recent, found.unfinished])


def end(world: World, job_id: int, generation: int = 1) -> None:
    world.report(job_id, NodePhase.ENDED, exit_code=0, generation=generation)
    world.pass_time(60)


def test_spending__equals_the_listed_costs_of_jobs(world: World) -> None:
    jobs = [world.submit(), world.submit(nodes=2), world.submit()]
    for job_id, nodes in zip(jobs, (1, 2, 1), strict=True):
        world.run(job_id, nodes=nodes)
    world.pass_time(1800, step_s=60)
    end(world, jobs[0])
    world.pass_time(600, step_s=60)
    for age_s in (0.0, MARGIN_S, 3 * HOUR_S):
        world.pass_time(age_s, step_s=600)
        found = total_of(report(world, SpendingLedger(timer=lambda: 0.0)))
        listed = [world.job(job_id) for job_id in jobs]
        assert found.total.cost_usd == pytest.approx(sum(job["cost_usd"] for job in listed))
        assert found.total.on_demand_usd == pytest.approx(sum(job["on_demand_cost_usd"] for job in listed))
        assert set(found.by_cloud) == {"fake"}
        assert {id: found.jobs[id].cost_usd for id in jobs} == pytest.approx(
            {job_id: job["cost_usd"] for job_id, job in zip(jobs, listed, strict=True)}
        )
    unfinished = report(world, SpendingLedger()).unfinished
    assert set(unfinished.jobs) == set(jobs[1:])


def test_cost__of_a_job_that_moved_is_the_same_in_every_sum_and_on_the_bill(world: World) -> None:
    job_id = world.submit(nodes=2)
    world.run(job_id, nodes=2)
    world.pass_time(1234, step_s=7)
    world.cloud.preempt(world.living()[0])
    world.deliver(job_id, events.NodeDisconnected(0, 1, 0))
    world.pass_time(30)
    world.run(job_id, generation=2, nodes=2)
    world.pass_time(4321, step_s=7)
    for rank in range(2):
        world.report(job_id, NodePhase.ENDED, exit_code=0, generation=2, rank=rank)
    world.pass_time(600, step_s=10)
    bill = sum(charge.usd for charge in world.cloud.bill())
    now = world.clock.now()
    with world.database.connect() as conn:
        attempts = queries.attempts_of(conn, job_id, now)
        budget = budgets.spent(conn, [""], now)[""]
    spent = total_of(report(world, SpendingLedger())).total.cost_usd
    assert bill > 0.1
    sums = (world.job(job_id)["cost_usd"], sum(one["cost_usd"] for one in attempts), spent, budget)
    assert sums == pytest.approx([bill] * 4, abs=0.005), "to the cent"


def test_past_hours__are_read_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = world.submit()
    world.run(job_id)
    world.pass_time(600, step_s=60)
    end(world, job_id)
    world.pass_time(3 * HOUR_S, step_s=600)
    ledger = SpendingLedger(timer=lambda: 0.0)
    first = report(world, ledger)
    read = []
    original = expenses._read
    monkeypatch.setattr(expenses, "_read", lambda *args, **bounds: read.append(bounds) or original(*args, **bounds))
    again, before = total_of(report(world, ledger)).total, total_of(first).total
    assert (again.cost_usd, again.lost_s) == pytest.approx((before.cost_usd, before.lost_s))
    assert before.cost_usd > 0
    assert len(read) == 1, "only what ended recently; what has not ended is kept for a while"


def test_unfinished_jobs__are_read_again_once_a_job_has_changed(world: World) -> None:
    """At once if reading them is quick, and otherwise when the time for it has come; that of others counts, too."""
    now, read_s = [0.0], 0.0

    def timer() -> float:
        now[0] += read_s
        return now[0]

    def listed(revision: int) -> tuple[set[int], bool]:
        at = world.clock.now()
        with world.database.connect() as conn:
            summary = ledger.report(conn, at, at, revision)
        return set(summary.unfinished.jobs), summary.is_current

    ledger = SpendingLedger(timer)
    assert listed(0) == (set(), True)
    first = world.submit()
    world.run(first)
    assert listed(0) == (set(), True), "as far as is known, nothing has changed"
    read_s = 1.0
    assert listed(1) == ({first}, True)
    second = world.submit()
    world.run(second)
    assert listed(2) == ({first}, False), "a second of work is not repeated at once"
    now[0] += expenses.LIVE_RATIO
    assert listed(2) == ({first, second}, True)
    now[0] += expenses.LIVE_TTL_S
    end(world, first)
    assert listed(2) == ({second}, True)


def test_report__continues_where_its_time_was_up(world: World) -> None:
    world.pass_time(0)
    now = [0.0]

    def timer() -> float:
        now[0] += expenses.BUDGET_S / 4
        return now[0]

    ledger, seen = SpendingLedger(timer), []
    for _ in range(20):
        seen.append(report(world, ledger))
        if seen[-1].is_complete:
            break
    assert seen[-1].is_complete
    assert len(seen) > 3
    since = [one.since for one in seen]
    assert since == sorted(since, reverse=True)


def test_lost_work__is_what_was_not_durable_at_the_loss(world: World) -> None:
    job_id = world.submit()
    world.run(job_id)
    world.pass_time(300)
    world.deliver(job_id, events.CheckpointDurable(0, 1, at=world.clock.now(), step=10))
    world.pass_time(120)  # lost
    world.cloud.preempt(world.living()[0])
    world.deliver(job_id, events.NodeDisconnected(0, 1, 0))
    world.pass_time(60)
    world.run(job_id, generation=2)
    world.pass_time(240)
    end(world, job_id, generation=2)
    found = total_of(report(world, SpendingLedger(timer=lambda: 0.0))).total
    assert found.lost_s == pytest.approx(120, abs=15)
    assert found.lost_usd > 0


def test_cluster__is_paid_by_its_machines_under_its_name(world: World) -> None:
    host, on_cluster = world.submit(), world.submit()
    with world.database.begin() as conn:
        conn.execute(update(Job).where(Job.c.id == host).values(name="dev", cluster_id=1))
        conn.execute(update(Job).where(Job.c.id == on_cluster).values(cluster_id=1, cluster_job=1))
    for job_id in (host, on_cluster):
        world.run(job_id)
    world.pass_time(600, step_s=60)
    found = total_of(report(world, SpendingLedger()))
    assert found.names == {host: "cluster dev"}
    assert found.total.cost_usd == pytest.approx(world.job(host)["cost_usd"])


def test_only_the_most_expensive_jobs__are_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expenses, "TOP_JOBS", 1)
    cheap, dear = world.submit(), world.submit(nodes=3)
    for job_id, nodes in ((cheap, 1), (dear, 3)):
        world.run(job_id, nodes=nodes)
    world.pass_time(600, step_s=60)
    found = total_of(report(world, SpendingLedger()))
    assert set(found.jobs) == {dear}
    assert found.total.cost_usd == pytest.approx(sum(world.job(id)["cost_usd"] for id in (cheap, dear)))
