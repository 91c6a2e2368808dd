"""The sweep of a cloud of which some regions do not answer; `tests/sim` sweeps whole histories."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.base.partial_listing import PartialListing
from perdure.controller.clouds.base.protocol import Bootstrap, LaunchRequest, Owner
from perdure.controller.maintenance.orphan_sweep import OrphanSweep
from perdure.controller.runtime.keys import AttemptKey
from unit.controller.world import World


@pytest.fixture
def described() -> list[AttemptKey]:
    return []


@pytest.fixture
def sweep(world: World, described: list[AttemptKey]) -> OrphanSweep:
    return OrphanSweep({"fake": world.cloud}, "test", world.database, world.inbox.owned_views, described.append)


def launch_orphans(world: World) -> dict[str, str]:
    """Region → a machine of this installation of which the database has no attempt."""
    offers = {offer.region: offer for offer in world.cloud.offers()}
    assert len(offers) > 1
    machines = {}
    for job, (region, offer) in enumerate(offers.items(), start=1000):
        owner = Owner("test", job, 0, 1, f"orphan-{region}")
        (machine,) = world.cloud.launch(LaunchRequest(owner, offer, 1, Bootstrap("http://x", "s", {}), "n"))
        machines[region] = machine.id
    return machines


def test_sweep__ends_orphans_of_the_regions_that_answer(world: World, sweep: OrphanSweep) -> None:
    machines = launch_orphans(world)
    silent, *others = machines
    world.cloud.faults.silent_regions = {silent}
    for _ in range(2):  # the first names them, since the database has no launch of them
        assert sweep.run() == len(others)
    world.cloud.faults.silent_regions.clear()
    assert world.living() == [machines[silent]]
    for _ in range(2):
        sweep.run()
    assert world.living() == []


def test_sweep__concludes_nothing_about_a_silent_region(
    world: World, sweep: OrphanSweep, described: list[AttemptKey]
) -> None:
    job = world.submit()
    world.run(job)
    region = world.view(job).tasks[0].attempts[0].offer.region
    world.cloud.faults.silent_regions = {region}
    sweep.run()
    assert described == []
    world.cloud.faults.silent_regions.clear()
    world.cloud.crash(world.living()[0])
    world.cloud.faults.silent_regions = {"another"}
    sweep.run()
    assert described == [(job, 0, 1)]


@pytest.mark.parametrize("is_own_region", [True, False])
def test_launch_without_an_answer__ends_unless_its_own_region_is_silent(world: World, is_own_region: bool) -> None:
    world.cloud.faults.broken_launches = [1]
    world.cloud.faults.listing_delay_s = 0
    job = world.submit()
    region = world.view(job).tasks[0].attempts[0].offer.region
    world.cloud.faults.throttle = 1
    other = next(offer.region for offer in world.cloud.offers() if offer.region != region)
    world.cloud.faults.silent_regions = {region if is_own_region else other}
    world.pass_time(60)
    world.cloud.faults.silent_regions.clear()
    generations = [one.owner.generation for one in world.cloud.list_owned("test")]
    assert (1 in generations) is is_own_region
    world.pass_time(120)
    assert 1 not in [one.owner.generation for one in world.cloud.list_owned("test")]


def test_listing__names_the_silent_regions(world: World) -> None:
    world.cloud.faults.silent_regions = {"east"}
    with pytest.raises(PartialListing, match="east cannot be listed: east does not answer"):
        world.cloud.list_owned("test")
