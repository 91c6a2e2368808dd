"""Which node a name stands for."""

from __future__ import annotations

import pytest

from perdure.controller.api.tunnel.names import NamedNode, login_user, resolve
from perdure.controller.submit.errors import RequestRejected
from perdure.recovery.statuses import NodePhase
from support.helpers.held_calls import HeldCalls
from unit.controller.world import World


def node(world: World, name: str) -> NamedNode:
    with world.database.connect() as conn:
        return resolve(conn, name)


@pytest.mark.parametrize("form", ["{}", "job-{}", "job-{}-worker1", "{}-worker1"])
def test_name__of_a_running_job(world: World, form: str) -> None:
    job = world.submit(nodes=2)
    world.run(job)
    named = node(world, form.format(job))
    rank = int("worker1" in form)
    assert named.place == ((job, 0, 1), rank)
    assert named.name == (f"job-{job}-worker1" if rank else f"job-{job}")
    assert named.num_nodes == 2


def test_name__stands_for_the_new_machine_after_a_recovery(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.report(job, NodePhase.ENDED, interrupted=True)
    world.pass_time(60)
    assert node(world, f"job-{job}").place == ((job, 0, 2), 0)


@pytest.mark.parametrize(
    "name",
    ["", "job-", "job-0", "job-01", "0", "-1", "job-1-worker0", "job-1-worker01", "job-1-worker", "job-1 ", " 1", "1\n",
     "job-\u0663", "job-1/../2", "cluster", "JOB-1", "job-" + "9" * 19, "x" * 200],
)  # fmt: skip
def test_name__in_another_form_is_rejected(world: World, name: str) -> None:
    with pytest.raises(RequestRejected) as rejected:
        node(world, name)
    assert rejected.value.status == 404


def test_name__of_an_unknown_job_or_node_is_rejected(world: World) -> None:
    job = world.submit()
    world.run(job)
    for name, message in ((f"job-{job + 1}", "there is no job"), (f"job-{job}-worker1", "has no node 1")):
        with pytest.raises(RequestRejected, match=message) as rejected:
            node(world, name)
        assert rejected.value.status == 404


def test_name__of_a_job_whose_machine_is_not_launched_yet_is_rejected(world: World, held_calls: HeldCalls) -> None:
    job = world.submit()
    assert held_calls.calls
    with pytest.raises(RequestRejected, match="has no machine now") as rejected:
        node(world, f"job-{job}")
    assert rejected.value.status == 409


def test_name__of_a_job_that_has_ended_is_rejected(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.report(job, NodePhase.ENDED, exit_code=0)
    world.pass_time(60)
    with pytest.raises(RequestRejected, match="has ended") as rejected:
        node(world, f"job-{job}")
    assert rejected.value.status == 409


def test_login_user__is_root_on_bought_machines() -> None:
    assert login_user("aws") == "root"
    assert login_user("uninstalled-cloud") == "root"
