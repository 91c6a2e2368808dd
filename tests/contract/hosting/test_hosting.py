"""The contract of `Hosting`."""

from __future__ import annotations

import pytest

from contract.hosting.hosting_bench import HostingBench
from perdure.controller.clouds.base.protocol import EventuallyConsistent, Hosting, InstanceState

pytestmark = pytest.mark.long


def test_state_disk__is_created_once_and_found_in_its_zone(bench: HostingBench) -> None:
    assert isinstance(bench.cloud, Hosting)
    made = bench.disk(zone=bench.zones[1])
    assert made.gib == 20
    ready = bench.until(lambda: disk if (disk := bench.disk()).is_ready else None)
    assert ready.id == made.id
    if bench.cloud.name != "local":  # whose disk is a folder, in every zone and without a size
        assert (ready.zone, bench.disk(gib=50).gib) == (bench.zones[1], 20)
    assert bench.disk("hosting-2").id != made.id


def test_launch_host__gives_an_on_demand_machine_a_stable_address(bench: HostingBench) -> None:
    first = bench.launch_host("t1")
    address = bench.attach_disk(first)
    seen = bench.see(first)
    assert (seen.state, seen.zone, seen.owner.token) == (InstanceState.RUNNING, bench.zones[0], "t1")
    assert [one.id for one in bench.cloud.list_owned("hosting-1")] == [first.id]
    assert bench.attach_disk(first) == address
    bench.end(first)
    disk = bench.disk()
    second = bench.launch_host("t2")
    assert second.id != first.id
    assert bench.attach_disk(second) == address, "running nodes connect to it"
    assert bench.disk().id == disk.id


def test_launch_host__continues_after_an_interruption_at_any_step(bench: HostingBench) -> None:
    first = bench.launch_host("t1")
    bench.attach_disk(first)
    resources = bench.resources()
    assert bench.launch_host("t1").id == first.id
    bench.attach_disk(first)
    assert bench.resources() == resources
    assert len(bench.cloud.list_owned("hosting-1")) == 1


def test_launch_host__is_idempotent_by_token(bench: HostingBench) -> None:
    first = bench.launch_host("t1")
    bench.end(first)
    second = bench.launch_host("t1")
    assert second.id == first.id
    assert bench.cloud.list_owned("hosting-1") == []


def test_state_disk__stays_with_a_running_machine(bench: HostingBench) -> None:
    if bench.cloud.name == "local":
        pytest.skip("its disk is a folder")
    first = bench.launch_host("t1")
    bench.attach_disk(first)
    with pytest.raises(EventuallyConsistent):
        bench.cloud.remove_disk("hosting-1", bench.region)
    try:
        second = bench.cloud.launch_host(bench.request("t2"), bench.needs())
    except EventuallyConsistent:
        return
    assert bench.cloud.attach_disk(bench.see(second), bench.disk()) is None


def test_release__leaves_only_the_disk(bench: HostingBench) -> None:
    others = bench.launch_host("t9", "hosting-2")
    bench.attach_disk(others, "hosting-2")
    of_others = bench.resources()
    first = bench.launch_host("t1")
    bench.attach_disk(first)
    disk = bench.disk().id
    bench.end(first)
    for _ in range(2):
        bench.finish(lambda: bench.cloud.release("hosting-1", bench.region))
        assert bench.resources() == of_others
    assert bench.disk().id == disk
    for _ in range(2):
        bench.finish(lambda: bench.cloud.remove_disk("hosting-1", bench.region))
    recreated = bench.disk(zone=bench.zones[1])
    if bench.cloud.name != "local":
        assert recreated.zone == bench.zones[1]
    assert bench.attach_disk(others, "hosting-2")
