"""Three machines in a row that never call hold their cloud; no more money is spent there."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.reachability import NEVER_CALLED
from perdure.controller.reconcile.boot_failures import HOLD_S, BootFailures
from perdure.recovery.market.unavailable import UnavailableOffer
from unit.controller.world import World

URL = "https://controller.example.com:8443"


@pytest.fixture
def remote(world: World) -> World:
    """A world whose cloud is remote."""
    world.market.boot_failures = BootFailures({"fake"}, URL)
    return world


def wait(world: World, seconds: float) -> None:
    """Nothing calls meanwhile."""
    world.pass_time(seconds, step_s=10.0)


def holds(world: World, job: int | None) -> list[UnavailableOffer]:
    now = world.clock.now()
    return [u for u in world.market.view(job).unavailable if u.code == NEVER_CALLED and u.until > now]


def bought(world: World) -> int:
    return len(world.cloud.bill())


def test_cloud__is_held_after_three_machines_that_never_called(remote: World) -> None:
    job = remote.submit()
    wait(remote, 5 * 1000)
    assert bought(remote) == 3
    assert not remote.living()
    held = holds(remote, job)
    assert {(u.cloud, u.region, u.instance_type, u.market) for u in held} == {("fake", None, None, None)}
    assert all(URL in u.message for u in held)
    assert URL in str(remote.timeline(job, "task.waiting")[-1]), "the job says why it waits"


def test_hold__is_for_one_job_until_another_jobs_machines_do_not_call_either(remote: World) -> None:
    first = remote.submit()
    wait(remote, 5 * 1000)
    assert holds(remote, first)
    assert not holds(remote, None), "perhaps it is the image of that job"
    second = remote.submit()
    wait(remote, 1000)
    assert holds(remote, None)
    assert holds(remote, second)


def test_hold__ends_with_one_machine_that_may_try(remote: World) -> None:
    job = remote.submit()
    wait(remote, 5 * 1000)
    wait(remote, HOLD_S)
    assert bought(remote) == 4
    wait(remote, 1000)
    assert bought(remote) == 4, "it never called either"
    for _ in range(100):
        if bought(remote) == 5:
            break
        wait(remote, 60)
    generation = remote.view(job).tasks[0].attempts[-1].generation
    remote.run(job, generation=generation)
    assert remote.job(job)["status"] == "RUNNING"


def test_machine__that_calls_ends_the_count(remote: World) -> None:
    first = remote.submit()
    wait(remote, 2 * 950)
    assert bought(remote) == 3
    remote.run(first, generation=3)
    remote.submit()
    wait(remote, 950)
    assert not holds(remote, first)
    assert not holds(remote, None)


def test_cloud__that_is_not_remote_is_never_held(world: World) -> None:
    world.submit()
    wait(world, 6 * 950)
    assert bought(world) > 3
