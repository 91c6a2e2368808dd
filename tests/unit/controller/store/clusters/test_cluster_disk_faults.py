"""The machines of a cluster over stop and start when its cloud, a controller or somebody else interferes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from sqlalchemy import insert

from perdure.controller.clouds.base.protocol import Instance, InstanceState, LaunchRequest
from perdure.controller.clouds.fake import FakeError
from perdure.controller.execute.call_types import IntentOutcome
from perdure.controller.execute.machine_ids import MachineIds
from perdure.controller.store.records import job_claims
from perdure.controller.store.records.clusters import host_key
from perdure.controller.store.records.intents import UNSAVED, Intent, IntentKind
from perdure.recovery import events
from perdure.recovery.job import Recovery
from perdure.recovery.statuses import NodePhase
from unit.controller.store.clusters.kept_cluster import HOUR_S, ON_DEMAND, KeptCluster
from unit.controller.world import World


@pytest.fixture
def cluster(world: World) -> KeptCluster:
    return KeptCluster(world)


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
