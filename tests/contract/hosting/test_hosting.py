"""What every cloud must do that gives a controller a machine of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from perdure.controller.clouds.base import Hosting, InstanceState, NotYet

if TYPE_CHECKING:
    Bench = Any

pytestmark = pytest.mark.long


def test_a_disk_is_made_once_and_found_where_it_is(bench: Bench) -> None:
    assert isinstance(bench.cloud, Hosting)
    made = bench.disk(zone=bench.zones[1])
    assert made.gib == 20
    ready = bench.until(lambda: found if (found := bench.disk()).is_ready else None)
    assert ready.id == made.id
    if bench.cloud.name != "local":  # whose folder is everywhere, and of no size
        assert (ready.zone, bench.disk(gib=50).gib) == (bench.zones[1], 20)
    assert bench.disk("hosting-2").id != made.id


def test_a_machine_stands_on_demand_with_an_address_that_stays(bench: Bench) -> None:
    first = bench.stand("t1")
    address = bench.settle(first)
    seen = bench.see(first)
    assert (seen.state, seen.zone, seen.owner.token) == (InstanceState.RUNNING, bench.zones[0], "t1")
    assert [one.id for one in bench.cloud.list_owned("hosting-1")] == [first.id]
    assert bench.settle(first) == address
    bench.end(first)
    disk = bench.disk()
    second = bench.stand("t2")
    assert second.id != first.id
    assert bench.settle(second) == address, "running nodes call there"
    assert bench.disk().id == disk.id


def test_what_was_broken_off_anywhere_is_found_again(bench: Bench) -> None:
    first = bench.stand("t1")
    bench.settle(first)
    kept = bench.kept()
    assert bench.stand("t1").id == first.id
    bench.settle(first)
    assert bench.kept() == kept
    assert len(bench.cloud.list_owned("hosting-1")) == 1


def test_a_token_stands_once_whatever_became_of_it(bench: Bench) -> None:
    first = bench.stand("t1")
    bench.end(first)
    again = bench.stand("t1")
    assert again.id == first.id
    assert bench.cloud.list_owned("hosting-1") == []


def test_a_machine_that_lives_keeps_the_disk(bench: Bench) -> None:
    if bench.cloud.name == "local":
        pytest.skip("its disk is a folder")
    first = bench.stand("t1")
    bench.settle(first)
    with pytest.raises(NotYet):
        bench.cloud.remove_disk("hosting-1", bench.region)
    try:
        second = bench.cloud.stand(bench.request("t2"), bench.needs())
    except NotYet:
        return
    assert bench.cloud.settle(bench.see(second), bench.disk()) is None


def test_nothing_but_the_disk_is_left_and_that_goes_when_told(bench: Bench) -> None:
    others = bench.stand("t9", "hosting-2")
    bench.settle(others, "hosting-2")
    of_others = bench.kept()
    first = bench.stand("t1")
    bench.settle(first)
    disk = bench.disk().id
    bench.end(first)
    for _ in range(2):
        bench.finish(lambda: bench.cloud.leave("hosting-1", bench.region))
        assert bench.kept() == of_others
    assert bench.disk().id == disk
    for _ in range(2):
        bench.finish(lambda: bench.cloud.remove_disk("hosting-1", bench.region))
    made_anew = bench.disk(zone=bench.zones[1])
    if bench.cloud.name != "local":
        assert made_anew.zone == bench.zones[1]
    assert bench.settle(others, "hosting-2")
