"""The machines of a cluster over stop and start when its cloud, a controller or somebody else interferes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from sqlalchemy import insert

from perdure.controller.clouds.base.protocol import VISIBLE_WITHIN_S, Instance, InstanceState, LaunchRequest
from perdure.controller.clouds.fake import FakeError
from perdure.controller.execute.call_types import IntentOutcome
from perdure.controller.execute.machine_ids import MachineIds
from perdure.controller.store.records import job_claims
from perdure.controller.store.records.clusters import host_key
from perdure.controller.store.records.intents import UNSAVED, Intent, IntentKind
from perdure.controller.submit.cluster.discarded_disks import discard, require_unused
from perdure.controller.submit.errors import RequestRejected
from perdure.recovery import events
from perdure.recovery.job import Recovery, Timeouts
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


def test_start__says_which_disk_is_lost_and_keeps_the_others(world: World) -> None:
    cluster = KeptCluster(world, nodes=2)
    cluster.start()
    first, second = sorted(cluster.machines())
    cluster.stop()
    world.cloud.crash(second)
    job = cluster.begin_start()
    world.pass_time(30)
    message = world.job(job)["message"]
    assert f"{second} (node 1)" in message
    assert "1 other disk is kept: `perdure start job --discard-disks`" in message
    for _ in range(3):
        cluster.sweep.run()
    assert cluster.machines() == {first: InstanceState.STOPPED}
    assert [(row.instance_id, row.stopped_at is None) for row in cluster.rows()] == [(first, False), (second, True)]
    assert world.cloud.calls["launch"] == 1, "nobody has asked for other machines"


@pytest.fixture
def recovering(world: World) -> KeptCluster:
    """Two machines that were stopped, and started again for a job that recovers."""
    world.timeouts = Timeouts(drain_timeout_s=600.0)
    cluster = KeptCluster(world, nodes=2)
    cluster.start()
    cluster.stop()
    cluster.begin_start(recovers=True)
    world.run(cluster.jobs[-1], 1, 2)
    return cluster


def test_recovery__ends_if_a_disk_is_lost(recovering: KeptCluster) -> None:
    world, job = recovering.world, recovering.jobs[-1]
    first, second = sorted(recovering.machines())
    world.cloud.crash(second)
    world.deliver(job, events.NodeDisconnected(0, 1, 1))
    world.report(job, NodePhase.ENDED, interrupted=True)
    world.pass_time(120)
    assert world.job(job)["status"] == "FAILED_PRECHECKS"
    assert f"{second} (node 1)" in world.job(job)["message"]
    assert "1 other disk is kept: `perdure start job --discard-disks`" in world.job(job)["message"]
    assert world.view(job).is_finalized
    assert recovering.machines() == {first: InstanceState.STOPPED}
    assert world.cloud.calls["launch"] == 1


def test_recovery__leaves_the_other_machines_their_time_to_save(recovering: KeptCluster) -> None:
    world, job = recovering.world, recovering.jobs[-1]
    first, second = sorted(recovering.machines())
    world.cloud.crash(second)
    world.deliver(job, events.NodeDisconnected(0, 1, 1))
    world.pass_time(90)
    assert [one.generation for one in world.view(job).tasks[0].attempts] == [1, 2]
    assert recovering.machines() == {first: InstanceState.RUNNING}, "its node has not ended"
    assert world.timeline(job, "launch.retry") == []


def test_start__after_the_only_disk_was_lost_is_on_another_machine(cluster: KeptCluster) -> None:
    cluster.start()
    (id,) = cluster.machines()
    cluster.stop()
    cluster.world.cloud.crash(id)
    job = cluster.begin_start()
    cluster.world.pass_time(VISIBLE_WITHIN_S + 30)
    assert "The next `perdure start job` is on new machines" in cluster.world.job(job)["message"]
    cluster.start()
    assert id not in cluster.machines()
    assert len(cluster.machines()) == 1


def test_discarded_disks__are_deleted_by_the_sweep(cluster: KeptCluster) -> None:
    cluster.start()
    (id,) = cluster.machines()
    cluster.stop()
    require_unused(cluster.world.database, cluster.row())
    with cluster.world.database.begin() as conn:
        discard(conn, cluster.id)
    cluster.start()
    for _ in range(3):
        cluster.sweep.run()
    assert id not in cluster.machines()
    assert list(cluster.machines().values()) == [InstanceState.RUNNING]


def test_discarded_disks__are_refused_while_they_are_in_use(cluster: KeptCluster) -> None:
    cluster.start()
    with pytest.raises(RequestRejected, match="dev has not stopped"):
        require_unused(cluster.world.database, cluster.row())
    cluster.want("STOPPED")
    cluster.world.deliver(cluster.jobs[-1], events.CancelRequested(60.0))
    with pytest.raises(RequestRejected, match="still being stopped"):
        require_unused(cluster.world.database, cluster.row())


def test_stop__keeps_the_other_disks_if_a_machine_is_gone(world: World) -> None:
    cluster = KeptCluster(world, nodes=2)
    job = cluster.start()
    first, second = sorted(cluster.machines())
    cluster.want("STOPPED")
    world.deliver(job, events.CancelRequested(60.0))
    world.cloud.crash(second)
    for rank in range(2):
        world.report(job, NodePhase.ENDED, rank=rank, interrupted=True)
    world.pass_time(60)
    assert cluster.machines() == {first: InstanceState.STOPPED}
    assert [row.instance_id for row in cluster.rows()] == [first, second]
    assert cluster.sweep.run() == 0


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


def test_kept_machine__that_is_off_and_billed_is_stopped_and_started(cluster: KeptCluster) -> None:
    """Somebody has started it in the cloud's console, and has shut it down from within."""
    world, cloud = cluster.world, cluster.world.cloud
    cluster.start()
    (machine,) = cloud.list_owned("test")
    cluster.stop()
    cloud.faults.off_is_billed = True
    cloud.start(cloud._machines[machine.id].request, [machine.id])
    cloud.power_off(machine.id)
    for _ in range(2):
        assert cluster.machines() == {machine.id: InstanceState.ENDING}
        cluster.sweep.run()
    assert cluster.machines() == {machine.id: InstanceState.STOPPED}
    cloud.start(cloud._machines[machine.id].request, [machine.id])
    cloud.power_off(machine.id)
    job = cluster.begin_start()
    world.pass_time(90)
    assert cluster.machines() == {machine.id: InstanceState.RUNNING}
    assert {one.owner.job_id for one in cloud.list_owned("test")} == {job}


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


def test_start__stops_a_kept_machine_that_runs_for_nobody_and_says_so(cluster: KeptCluster) -> None:
    cluster.start()
    (machine,) = cluster.world.cloud.list_owned("test")
    cluster.stop()
    cluster.world.cloud.start(cluster.world.cloud._machines[machine.id].request, [machine.id])
    job = cluster.begin_start()
    cluster.world.pass_time(5)
    assert cluster.machines() == {machine.id: InstanceState.RUNNING}
    assert {one.owner.job_id for one in cluster.world.cloud.list_owned("test")} == {job}
    (entry,) = cluster.world.timeline(job, "launch.retry")
    assert f"{machine.id} was started by somebody else" in entry["message"]


def test_down__within_a_start_that_waits_starts_nothing(cluster: KeptCluster) -> None:
    cluster.start()
    (id,) = cluster.machines()
    cluster.stop()
    cluster.world.cloud._machines[id].stopped_at = cluster.world.clock.now() + 60  # it is still stopping
    job = cluster.begin_start()
    cluster.world.pass_time(5)
    cluster.want("DOWN")
    cluster.world.deliver(job, events.CancelRequested(0.0))
    cluster.world.pass_time(2)
    assert cluster.world.view(job).is_finalized
    cluster.world.pass_time(90)
    cluster.down()
    assert (cluster.machines(), cluster.rows()) == ({}, [])
    assert (cluster.world.cloud.calls["start"], cluster.world.cloud.calls["launch"]) == (0, 1)


@pytest.mark.parametrize("broken", [1, 2, 8])
def test_down__within_a_start_that_is_repeated_leaves_nothing(world: World, broken: int) -> None:
    """The responses of the first tries were lost; some machines run, and others do not."""
    cluster = KeptCluster(world, nodes=2)
    cluster.start()
    cluster.stop()
    world.cloud.faults.broken_starts = [1] * broken
    job = cluster.begin_start()
    cluster.want("DOWN")
    world.deliver(job, events.CancelRequested(0.0))
    world.pass_time(300)
    assert world.view(job).is_finalized
    cluster.down()
    assert (cluster.machines(), cluster.rows()) == ({}, [])
    assert world.cloud.calls["launch"] == 1


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


def test_sweep__believes_no_old_list_of_machines_that_were_started_again(
    cluster: KeptCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.start()
    old = list(cluster.world.cloud.list_owned("test"))
    cluster.stop()
    cluster.start()
    monkeypatch.setattr(cluster.world.cloud, "list_owned", lambda _controller: old)
    for _ in range(3):
        cluster.sweep.run()
    monkeypatch.undo()
    assert list(cluster.machines().values()) == [InstanceState.RUNNING]
