"""A cluster whose cloud refuses to stop its machines: their homes are saved before they end."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.base.protocol import InstanceState
from perdure.controller.store.clusters import home_rescues
from perdure.recovery import events
from unit.controller.store.clusters.kept_cluster import KeptCluster
from unit.controller.world import World


@pytest.fixture
def cluster(world: World) -> KeptCluster:
    return KeptCluster(world)


REFUSED = pytest.mark.parametrize("code", ["BadCredentials", "BadRequest"])


def refuse_stop(cluster: KeptCluster, code: str) -> int:
    """Stop a cluster whose cloud refuses that for long."""
    job = cluster.start()
    cluster.world.cloud.faults.stop_error = code
    cluster.stop()
    assert list(cluster.machines().values()) == [InstanceState.RUNNING], "it may be refused for a moment only"
    cluster.world.pass_time(90)
    return job


@REFUSED
def test_stop__that_the_cloud_refuses_ends_the_machines_once_their_homes_are_saved(
    cluster: KeptCluster, code: str
) -> None:
    job = refuse_stop(cluster, code)
    (id,) = cluster.machines()
    cluster.world.pass_time(120)
    assert cluster.machines() == {id: InstanceState.RUNNING}, "its home is on it"
    place = ((job, 0, 1), 0)
    with cluster.world.database.begin() as conn:
        assert home_rescues.is_asked(conn, place)
        home_rescues.report(conn, place, "", cluster.world.clock.now())
        assert not home_rescues.is_asked(conn, place)
    cluster.world.pass_time(30)
    assert (cluster.machines(), cluster.rows()) == ({}, [])
    (entry,) = cluster.world.timeline(job, "disks.lost")
    assert code in entry["message"]
    assert "the home folders were saved to" in entry["message"]
    with cluster.world.database.connect() as conn:
        assert home_rescues.of_attempt(conn, cluster.id, job, 1) is None


@pytest.mark.parametrize("saved", [True, False])
def test_stop__that_the_cloud_refuses_is_not_over_because_an_earlier_one_was(cluster: KeptCluster, saved: bool) -> None:
    """A controller that does not know these rows has ended the machines of that attempt."""
    with cluster.world.database.begin() as conn:
        home_rescues.begin(conn, cluster.id, 99, 1, 1, cluster.world.clock.now() - 5000)
        if saved:
            home_rescues.report(conn, ((99, 0, 1), 0), "", 0.0)
    job = refuse_stop(cluster, "BadRequest")
    cluster.world.pass_time(30)
    assert list(cluster.machines().values()) == [InstanceState.RUNNING]
    with cluster.world.database.connect() as conn:
        assert home_rescues.is_asked(conn, ((job, 0, 1), 0))


def test_stop__that_the_cloud_refuses_ends_silent_machines_after_a_while(cluster: KeptCluster) -> None:
    job = refuse_stop(cluster, "BadRequest")
    cluster.world.pass_time(home_rescues.LIMIT_S + 60, step_s=10)
    assert cluster.machines() == {}
    (entry,) = cluster.world.timeline(job, "disks.lost")
    assert "0 of 1 home folders were saved within 15 minutes" in entry["message"]


def test_stop__that_the_cloud_refuses_ends_machines_that_are_off_and_billed(cluster: KeptCluster) -> None:
    cluster.world.cloud.faults.off_is_billed = True
    job = refuse_stop(cluster, "BadCredentials")
    (id,) = cluster.machines()
    cluster.world.cloud.power_off(id)
    assert cluster.machines() == {id: InstanceState.ENDING}
    cluster.world.pass_time(home_rescues.LIMIT_S + 60, step_s=10)
    assert cluster.machines() == {}
    assert cluster.world.view(job).is_finalized


def test_stop__that_the_cloud_refuses_keeps_machines_that_were_started_and_never_called(cluster: KeptCluster) -> None:
    """Nobody can save what is on their disks, and nothing of it is elsewhere."""
    world = cluster.world
    cluster.start()
    (id,) = cluster.machines()
    cluster.stop()
    job = cluster.begin_start()
    world.pass_time(5)
    world.cloud.faults.stop_error = "BadRequest"
    cluster.want("STOPPED")
    world.deliver(job, events.CancelRequested(0.0))
    world.pass_time(2 * home_rescues.LIMIT_S, step_s=10)
    assert cluster.machines() == {id: InstanceState.RUNNING}
    assert "nothing on them answers" in world.timeline(job, "terminate.retry")[-1]["message"]
    world.cloud.faults.stop_error = None
    world.pass_time(60)
    assert cluster.machines() == {id: InstanceState.STOPPED}


def test_stop__that_the_cloud_refuses_is_over_when_the_cluster_is_down(cluster: KeptCluster) -> None:
    refuse_stop(cluster, "BadRequest")
    cluster.want("DOWN")
    cluster.world.pass_time(30)
    assert cluster.machines() == {}


def test_stop__that_the_cloud_refuses_for_a_while_keeps_the_disk(cluster: KeptCluster) -> None:
    job = refuse_stop(cluster, "BadRequest")
    (id,) = cluster.machines()
    cluster.world.cloud.faults.stop_error = None
    cluster.world.pass_time(60)
    assert cluster.machines() == {id: InstanceState.STOPPED}
    with cluster.world.database.connect() as conn:
        assert home_rescues.of_attempt(conn, cluster.id, job, 1) is None


def test_stop__that_the_cloud_throttles_is_repeated(cluster: KeptCluster) -> None:
    refuse_stop(cluster, "Throttled")
    (id,) = cluster.machines()
    cluster.world.pass_time(180)
    assert cluster.machines() == {id: InstanceState.RUNNING}
    cluster.world.cloud.faults.stop_error = None
    cluster.world.pass_time(60)
    assert cluster.machines() == {id: InstanceState.STOPPED}
