"""The machines of a cluster over stop, start and down: what is kept, what is started, and what is deleted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.controller.clouds.base.protocol import InstanceState
from perdure.controller.store.records.clusters import host_key
from perdure.recovery import events
from perdure.recovery.job import Recovery
from perdure.recovery.statuses import NodePhase
from unit.controller.store.clusters.kept_cluster import HOUR_S, ON_DEMAND, KeptCluster
from unit.controller.world import World


@pytest.fixture
def cluster(world: World) -> KeptCluster:
    return KeptCluster(world)


def test_stop__keeps_the_machines_and_the_sweep_leaves_them(cluster: KeptCluster) -> None:
    cluster.start()
    (id,) = cluster.machines()
    cluster.stop()
    assert cluster.machines() == {id: InstanceState.STOPPED}
    assert cluster.world.job(cluster.jobs[0])["status"] == "CANCELLED"
    for _ in range(3):
        assert cluster.sweep.run() == 0
    assert cluster.machines() == {id: InstanceState.STOPPED}


def test_stopped_cluster__costs_its_disks_alone(cluster: KeptCluster) -> None:
    job = cluster.start()
    cluster.world.pass_time(HOUR_S, step_s=60)
    cluster.stop()
    machines_cost, price = cluster.world.job(job)["cost_usd"], cluster.rows()[0].price_per_hour
    before = cluster.cost()
    cluster.world.pass_time(2 * HOUR_S, step_s=600)
    assert cluster.world.job(job)["cost_usd"] == pytest.approx(machines_cost)
    assert cluster.cost() - before == pytest.approx(2 * price)
    cluster.start()
    kept = cluster.cost()
    cluster.world.pass_time(HOUR_S, step_s=600)
    assert cluster.cost() == pytest.approx(kept), "while they run, their disks are in the price of the machines"


def test_start__runs_the_same_machines(world: World) -> None:
    cluster = KeptCluster(world, nodes=2)
    cluster.start()
    before = list(cluster.machines())
    for _ in range(2):
        cluster.stop()
        job = cluster.start()
        assert cluster.machines() == dict.fromkeys(before, InstanceState.RUNNING)
        assert {one.owner.job_id for one in cluster.world.cloud.list_owned("test")} == {job}
        assert cluster.sweep.run() == 0
        attempt = world.view(job).tasks[0].attempts[-1]
        assert [node.instance_id for node in attempt.nodes] == sorted(before)


def test_start__waits_for_capacity_and_keeps_the_disk(cluster: KeptCluster) -> None:
    cluster.start()
    (id,) = cluster.machines()
    zone = cluster.world.view(cluster.jobs[0]).tasks[0].attempts[0].offer.zone
    cluster.stop()
    cluster.world.cloud.faults.capacity = dict.fromkeys(("fake-1a", "fake-1b", "fake-2a"), 0)
    cluster.want("UP")
    cluster.world.submit(
        spec={"host": True}, need=replace(ON_DEMAND, zone=zone), recovery=Recovery(recovers=False),
        job={"cluster_id": cluster.id, "idempotency_key": host_key(cluster.id, 2)},
    )  # fmt: skip
    cluster.world.pass_time(120)
    assert cluster.machines() == {id: InstanceState.STOPPED}
    cluster.world.cloud.faults.capacity = {}
    cluster.world.pass_time(300)
    assert cluster.machines() == {id: InstanceState.RUNNING}


def test_refused_start__costs_nothing(cluster: KeptCluster) -> None:
    cluster.start()
    cluster.world.pass_time(HOUR_S, step_s=60)
    cluster.stop()
    cluster.world.cloud.faults.capacity = dict.fromkeys(("fake-1a", "fake-1b", "fake-2a"), 0)
    job = cluster.begin_start()
    cluster.want("STOPPED")
    cluster.world.deliver(job, events.CancelRequested(60.0))
    cluster.world.pass_time(30)
    assert list(cluster.machines().values()) == [InstanceState.STOPPED]
    assert cluster.world.job(job)["cost_usd"] == 0, "the hour is the first job's"


def test_down__of_a_stopped_cluster_deletes_the_machines(cluster: KeptCluster) -> None:
    cluster.start()
    cluster.stop()
    cluster.down()
    assert (cluster.machines(), cluster.rows()) == ({}, [])


def test_down__of_a_cluster_that_was_started_again_ends_it(cluster: KeptCluster) -> None:
    cluster.start()
    cluster.stop()
    cluster.start()
    cluster.want("DOWN")
    cluster.end_host()
    assert cluster.machines() == {}
    cluster.down()
    assert cluster.rows() == []


def test_down__leaves_machines_that_were_started_again_their_time_to_save(cluster: KeptCluster) -> None:
    cluster.start()
    cluster.stop()
    job = cluster.start()
    (id,) = cluster.machines()
    cluster.want("DOWN")
    cluster.world.deliver(job, events.CancelRequested(60.0))
    cluster.down()
    assert cluster.machines() == {id: InstanceState.RUNNING}, "its jobs are saving"
    cluster.world.report(job, NodePhase.ENDED, generation=cluster.generation, interrupted=True)
    cluster.world.pass_time(10)
    cluster.down()
    assert (cluster.machines(), cluster.rows()) == ({}, [])


def test_sweep__ends_what_a_cluster_that_is_down_has_kept(cluster: KeptCluster) -> None:
    cluster.start()
    cluster.stop()
    cluster.want("DOWN")
    cluster.sweep.run()
    assert cluster.machines() == {}


@pytest.mark.parametrize("more", [{"is_spot": True}, {"recovers": True}])
def test_stop__ends_machines_whose_home_is_saved(cluster: KeptCluster, more: dict[str, bool]) -> None:
    cluster.start(**more)
    cluster.stop()
    assert (cluster.machines(), cluster.rows()) == ({}, [])


def test_switch__is_off_for_new_machines_and_not_for_kept_ones(cluster: KeptCluster) -> None:
    cluster.switch(on=False)
    cluster.start()
    cluster.stop()
    assert (cluster.machines(), cluster.rows()) == ({}, [])
    cluster.switch(on=True)
    cluster.start()
    (id,) = cluster.machines()
    cluster.switch(on=False)
    for _ in range(2):
        cluster.stop()
        assert cluster.machines() == {id: InstanceState.STOPPED}, "nothing of it is saved elsewhere"
        cluster.start()
        assert cluster.machines() == {id: InstanceState.RUNNING}
    cluster.stop()
    cluster.down()
    assert (cluster.machines(), cluster.rows()) == ({}, [])


def test_cancelled_launch__leaves_no_disk(cluster: KeptCluster) -> None:
    """Nothing of the user's is on a machine that has never run."""
    cluster.want("UP")
    job = cluster.world.submit(spec={"host": True}, need=ON_DEMAND, job={"cluster_id": cluster.id})
    cluster.want("STOPPED")
    cluster.world.deliver(job, events.CancelRequested(0.0))
    cluster.world.pass_time(60)
    assert cluster.machines() == {}


def test_stop__while_the_machines_start_again_keeps_them(cluster: KeptCluster) -> None:
    cluster.start()
    (id,) = cluster.machines()
    cluster.stop()
    cluster.want("UP")
    job = cluster.world.submit(
        spec={"host": True}, need=ON_DEMAND, recovery=Recovery(recovers=False),
        job={"cluster_id": cluster.id, "idempotency_key": host_key(cluster.id, 2)},
    )  # fmt: skip
    cluster.want("STOPPED")
    cluster.world.deliver(job, events.CancelRequested(0.0))
    cluster.world.pass_time(60)
    assert cluster.machines() == {id: InstanceState.STOPPED}
    assert cluster.rows()[0].stopped_at is not None


def test_power_off__of_a_machine_without_a_controller_keeps_its_disk(cluster: KeptCluster) -> None:
    job = cluster.start()
    (id,) = cluster.machines()
    cluster.world.cloud.power_off(id)
    cluster.world.deliver(job, events.NodeDisconnected(0, cluster.generation, 0))
    cluster.world.pass_time(60)
    assert cluster.machines() == {id: InstanceState.STOPPED}
    assert cluster.sweep.run() == 0


def test_preemption__that_was_announced_before_the_stop_does_not_reach_the_next_start(cluster: KeptCluster) -> None:
    cluster.start()
    (id,) = cluster.machines()
    cluster.world.cloud.preempt(id, notice_s=600.0)
    cluster.stop()
    cluster.start()
    cluster.world.pass_time(700, step_s=50)
    assert cluster.machines() == {id: InstanceState.RUNNING}
