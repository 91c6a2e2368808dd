"""The machines of a cluster over stop, start and down: what is kept, what is started, and what is deleted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from perdure.controller.clouds.base.protocol import Instance, InstanceState, LaunchRequest
from perdure.controller.clouds.fake import FakeError
from perdure.controller.execute.call_types import IntentOutcome
from perdure.controller.execute.machine_ids import MachineIds
from perdure.controller.execute.unneeded_resources import UnneededResources
from perdure.controller.maintenance.orphan_sweep import OrphanSweep
from perdure.controller.store.clusters import cluster_disks
from perdure.controller.store.clusters.tables import ClusterRow
from perdure.controller.store.records import clusters, job_claims
from perdure.controller.store.records.clusters import Cluster, host_key
from perdure.controller.store.records.intents import UNSAVED, Intent, IntentKind
from perdure.recovery import events
from perdure.recovery.job import Recovery
from perdure.recovery.market.requirements import Amount, MachineRequirement
from perdure.recovery.statuses import NodePhase
from unit.controller.world import World

ON_DEMAND = MachineRequirement(cpus=Amount(4), use_spot=False)
HOUR_S = 3600.0


class KeptCluster:
    """A cluster of on-demand machines on the fake cloud. `jobs`: those that have held its machines."""

    def __init__(self, world: World, *, nodes: int = 1) -> None:
        self.world, self.nodes, self.jobs = world, nodes, list[int]()
        world.stoppable = frozenset({"fake"})
        world.current = world.controller(world.owner)
        self.sweep = OrphanSweep({"fake": world.cloud}, "test", world.database, world.inbox.owned_views, list.__len__)
        row = ClusterRow(
            name="dev", active_name="dev", wanted="UP", created_at=0, launched_at=0, active_at=0, config={}
        )
        with world.database.begin() as conn:
            self.id = clusters.insert_cluster(conn, {**row.model_dump(exclude={"id"}), "starts": 1})

    def start(self, *, recovers: bool = False, is_spot: bool = False) -> int:
        """Launch the machines, or start them again, and wait until they run."""
        self.want("UP")
        key = host_key(self.id, len(self.jobs) + 1)
        self.jobs.append(
            self.world.submit(
                nodes=self.nodes,
                spec={"host": True},
                need=replace(ON_DEMAND, use_spot=is_spot),
                job={"cluster_id": self.id, "idempotency_key": key},
                recovery=Recovery(recovers=recovers),
            )
        )
        self.world.run(self.jobs[-1], self.generation, self.nodes)
        return self.jobs[-1]

    @property
    def generation(self) -> int:
        return self.world.view(self.jobs[-1]).tasks[0].attempts[-1].generation

    def switch(self, *, on: bool) -> None:
        """Start the controller again with another `clusters.keep_disks`."""
        self.world.keep_disks = on
        self.world.restart(self.world.owner + "+")

    def want(self, wanted: str) -> None:
        with self.world.database.begin() as conn:
            conn.execute(update(Cluster).values(wanted=wanted))

    def end_host(self) -> None:
        """Cancel the job that holds the machines, whose agents then end in order."""
        generation = self.generation
        self.world.deliver(self.jobs[-1], events.CancelRequested(60.0))
        for rank in range(self.nodes):
            self.world.report(self.jobs[-1], NodePhase.ENDED, generation=generation, rank=rank, interrupted=True)
        self.world.pass_time(10)

    def stop(self) -> None:
        self.want("STOPPED")
        self.end_host()

    def down(self) -> None:
        self.want("DOWN")
        for _ in range(2):
            UnneededResources(self.world.database, {"fake": self.world.cloud}, "test").tick()
            self.world.pass_time(5)

    def machines(self) -> dict[str, InstanceState]:
        """Those that are not gone."""
        return {one.id: one.state for one in self.world.cloud.list_owned("test")}

    def rows(self) -> list[Any]:
        with self.world.database.connect() as conn:
            return list(conn.execute(select(cluster_disks.Disk)))

    def cost(self) -> float:
        return sum(cluster_disks.cost_of(row, self.world.clock.now()) for row in self.rows())


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


def test_start__that_is_repeated_after_a_broken_connection_starts_them_once(world: World) -> None:
    cluster = KeptCluster(world, nodes=2)
    cluster.start()
    before = list(cluster.machines())
    cluster.stop()
    world.cloud.faults.broken_starts = [1, 2]
    cluster.want("UP")
    cluster.start()
    world.pass_time(30)
    assert cluster.machines() == dict.fromkeys(before, InstanceState.RUNNING)


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


def test_start__launches_others_if_a_machine_is_lost(world: World) -> None:
    cluster = KeptCluster(world, nodes=2)
    cluster.start()
    first, second = sorted(cluster.machines())
    cluster.stop()
    world.cloud.crash(second)
    job = cluster.start()
    assert cluster.rows() == []
    assert second in world.timeline(job, "disks.lost")[0]["message"]
    for _ in range(2):
        cluster.sweep.run()
    assert len(cluster.machines()) == 2
    assert not {first, second} & set(cluster.machines()), "the disk that is left belongs to nobody"


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


@pytest.mark.parametrize(
    ("revision", "until", "keeps"), [("0012", 1e11, False), ("0012", 0.0, True), ("0013", 1e11, True)]
)
def test_stop__keeps_no_disks_while_a_controller_lives_that_would_end_them(
    cluster: KeptCluster, revision: str, until: float, keeps: bool
) -> None:
    with cluster.world.database.begin() as conn:
        lease = {"started_at": 0.0, "lease_until": until, "schema_revision": revision}
        conn.execute(insert(job_claims.Controller).values(id="old", **lease))
    cluster.start()
    cluster.stop()
    assert list(cluster.machines().values()) == ([InstanceState.STOPPED] if keeps else [])


@pytest.mark.parametrize(("code", "is_ended"), [("BadCredentials", True), ("BadRequest", True), ("Throttled", False)])
def test_stop__that_the_cloud_refuses_ends_the_machines_after_a_while(
    cluster: KeptCluster, code: str, is_ended: bool
) -> None:
    job = cluster.start()
    (id,) = cluster.machines()
    cluster.world.cloud.faults.stop_error = code
    cluster.stop()
    assert cluster.machines() == {id: InstanceState.RUNNING}, "the permission may be missing for a moment only"
    cluster.world.pass_time(180)
    assert cluster.machines() == ({} if is_ended else {id: InstanceState.RUNNING})
    if is_ended:
        (entry,) = cluster.world.timeline(job, "disks.lost")
        assert code in entry["message"]
        assert cluster.rows() == []
    cluster.world.cloud.faults.stop_error = None
    cluster.world.pass_time(60)
    assert cluster.machines() == ({} if is_ended else {id: InstanceState.STOPPED})


def test_end_of_an_attempt__leaves_the_machines_that_another_one_has_started(cluster: KeptCluster) -> None:
    job = cluster.start()
    (machine,) = cluster.world.cloud.list_owned("test")
    cluster.stop()
    request = {"controller": "test", "offer": cluster.rows()[0].offer, "keeps_disks": True, "cluster_id": cluster.id}
    request |= {"disk_gib": None, "disk_tier": None, "resumes": None}
    cluster.start()
    terminate = Intent(UNSAVED, job, 0, 1, IntentKind.TERMINATE, "token", request, cluster.world.clock.now())
    known = MachineIds(((0, machine.id),), since=None)
    outcome = cluster.world.current.executor.perform(terminate, known, 0)
    assert isinstance(outcome, IntentOutcome)
    assert (outcome.result, outcome.disks) == ("taken over", None)
    assert cluster.machines() == {machine.id: InstanceState.RUNNING}


def test_sweep__stops_a_kept_machine_that_runs_for_nobody(cluster: KeptCluster) -> None:
    cluster.start()
    (machine,) = cluster.world.cloud.list_owned("test")
    cluster.stop()
    request = cluster.world.cloud._machines[machine.id].request
    cluster.world.cloud.start(request, [machine.id])  # somebody uses the console of the cloud
    cluster.sweep.run()
    assert cluster.machines() == {machine.id: InstanceState.RUNNING}, "a start may show its owner late"
    cluster.sweep.run()
    assert cluster.machines() == {machine.id: InstanceState.STOPPED}
    cluster.start()
    for _ in range(3):
        cluster.sweep.run()
    assert cluster.machines() == {machine.id: InstanceState.RUNNING}


def test_refused_start__ends_with_a_stop_of_its_machines(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cloud that refuses one of them may have started another one, and its request to stop it may be lost."""
    cluster = KeptCluster(world, nodes=2)
    cluster.start()
    zone = world.view(cluster.jobs[0]).tasks[0].attempts[0].offer.zone
    ids = sorted(cluster.machines())
    cluster.stop()
    world.pass_time(HOUR_S, step_s=600)
    cost, start = cluster.cost(), world.cloud.start

    def start_one(request: LaunchRequest, _ids: Sequence[str]) -> Sequence[Instance]:
        monkeypatch.undo()
        start(request, ids[:1])
        world.cloud.faults.capacity = {zone: 0}
        raise FakeError("NoCapacity", zone)

    monkeypatch.setattr(world.cloud, "start", start_one)
    cluster.want("UP")
    world.submit(
        nodes=2, spec={"host": True}, need=replace(ON_DEMAND, zone=zone), recovery=Recovery(recovers=False),
        job={"cluster_id": cluster.id, "idempotency_key": host_key(cluster.id, 2)},
    )  # fmt: skip
    world.pass_time(30)
    assert cluster.machines() == dict.fromkeys(ids, InstanceState.STOPPED)
    assert cluster.cost() >= cost > 0, "what the disks have cost is not forgotten"


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


def test_controller_that_dies_meanwhile__keeps_the_machines(cluster: KeptCluster) -> None:
    job = cluster.start()
    (id,) = cluster.machines()
    cluster.want("STOPPED")
    cluster.world.cloud.faults.ending_s = 30.0
    cluster.world.deliver(job, events.CancelRequested(60.0))
    cluster.world.report(job, NodePhase.ENDED, interrupted=True)
    cluster.world.restart()
    cluster.world.pass_time(60)
    assert cluster.machines() == {id: InstanceState.STOPPED}
    assert [row.instance_id for row in cluster.rows()] == [id]


def test_start__whose_result_stays_unknown_keeps_the_disks(cluster: KeptCluster) -> None:
    """The machines run for an attempt that is given up, and are stopped again rather than ended."""
    cluster.start()
    (id,) = cluster.machines()
    zone = cluster.world.view(cluster.jobs[0]).tasks[0].attempts[0].offer.zone
    cluster.stop()
    cluster.world.cloud.faults.broken_starts = [1] * 8
    cluster.want("UP")
    job = cluster.world.submit(
        spec={"host": True}, need=replace(ON_DEMAND, zone=zone), recovery=Recovery(recovers=False),
        job={"cluster_id": cluster.id, "idempotency_key": host_key(cluster.id, 2)},
    )  # fmt: skip
    cluster.world.pass_time(400)
    assert "attempt.refused" in cluster.world.kinds(job)
    assert list(cluster.machines()) == [id]
