"""Calls in real threads: bounded, in order, withdrawn in time, and held back by what the database knows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

import pytest

from perdure.controller.bounds import Bounds
from perdure.controller.caps import Standing
from perdure.controller.dispatch import Answered, Call
from perdure.controller.keyring import AttemptKey
from perdure.controller.lanes import Launch
from perdure.controller.pools import Pools

PATIENCE_S = 20.0


@dataclass
class Cloud:
    """Calls are answered when `answer` is called; `begun` is given a permit for each that begins."""

    names: list[str] = field(default_factory=list)
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    standing: Standing = field(default_factory=Standing)

    def call(self, name: str, launch: Launch | None = None, answer: Answered | None = None) -> Call:
        def make() -> Answered:
            self.names.append(name)
            self.begun.release()
            assert self.gate.acquire(timeout=PATIENCE_S)
            return answer or Answered()

        return Call(make, launch)

    def has_begun(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=PATIENCE_S)

    def begins_nothing(self) -> bool:
        return not self.begun.acquire(timeout=0.05)

    def look(self, _asked: Collection[AttemptKey]) -> Standing:
        return self.standing


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


@pytest.fixture
def pools_of(cloud: Cloud) -> Iterator[Callable[[Bounds], Pools]]:
    made: list[Pools] = []

    def make(bounds: Bounds) -> Pools:
        made.append(Pools(bounds, cloud.look))
        return made[-1]

    yield make
    cloud.gate.release(1000)
    for pools in made:
        pools.shutdown()


def done(*futures: Future[Any]) -> None:
    assert not wait(futures, PATIENCE_S).not_done


def test_no_more_calls_at_a_time_than_the_cloud_bears(cloud: Cloud, pools_of: Callable[[Bounds], Pools]) -> None:
    pool = pools_of(Bounds(most_in_flight={"aws": 2}))("aws")
    futures = [pool.submit(cloud.call(str(job), Launch((job, 0, 1)))) for job in range(5)]
    cloud.has_begun(2)
    assert cloud.begins_nothing()
    cloud.gate.release(1)
    cloud.has_begun(1)
    assert cloud.begins_nothing()
    cloud.gate.release(4)
    done(*futures)
    assert sorted(cloud.names) == ["0", "1", "2", "3", "4"]


def test_one_cloud_that_hangs_holds_up_no_other(cloud: Cloud, pools_of: Callable[[Bounds], Pools]) -> None:
    pools = pools_of(Bounds(most_in_flight={"aws": 1, "gcp": 1}))
    pools("aws").submit(cloud.call("hangs"))
    pools("aws").submit(cloud.call("waits"))
    cloud.has_begun()
    pools("gcp").submit(cloud.call("goes"))
    cloud.has_begun()
    assert cloud.names == ["hangs", "goes"]


def test_a_complaint_halves_what_is_under_way(cloud: Cloud, pools_of: Callable[[Bounds], Pools]) -> None:
    pool = pools_of(Bounds(most_in_flight={"aws": 4}))("aws")
    throttled = Answered(is_throttled=True, may_exist=False)
    for job in range(4):
        pool.submit(cloud.call(str(job), Launch((job, 0, 1)), throttled))
    for job in range(4, 10):
        pool.submit(cloud.call(str(job), Launch((job, 0, 1))))
    cloud.has_begun(4)
    cloud.gate.release(4)
    cloud.has_begun(2)
    assert cloud.begins_nothing()


def test_what_ends_machines_overtakes_and_a_call_that_raises_costs_no_place(
    cloud: Cloud, pools_of: Callable[[Bounds], Pools]
) -> None:
    def fail() -> Answered:
        raise RuntimeError("a fault of ours")

    pool = pools_of(Bounds(most_in_flight={"aws": 1}))("aws")
    pool.submit(cloud.call("first", Launch((1, 0, 1))))
    cloud.has_begun()
    futures = [
        pool.submit(cloud.call("buy", Launch((2, 0, 1)))),
        pool.submit(Call(fail)),
        pool.submit(cloud.call("end")),
    ]
    cloud.gate.release(3)
    done(*futures)
    assert cloud.names == ["first", "end", "buy"]


def test_a_launch_that_was_taken_back_is_not_made(cloud: Cloud, pools_of: Callable[[Bounds], Pools]) -> None:
    pool = pools_of(Bounds(most_in_flight={"aws": 1}))("aws")
    first = pool.submit(cloud.call("first", Launch((1, 0, 1))))
    unwanted = pool.submit(cloud.call("unwanted", Launch((2, 0, 1))))
    last = pool.submit(cloud.call("last", Launch((3, 0, 1))))
    cloud.has_begun()
    assert not first.cancel(), "too late"
    assert unwanted.cancel()
    cloud.gate.release(2)
    done(first, last)
    assert cloud.names == ["first", "last"]


def test_launches_wait_for_room_and_say_why(cloud: Cloud, pools_of: Callable[[Bounds], Pools]) -> None:
    pools = pools_of(Bounds(most_machines={"aws": 2}))
    pool = pools("aws")
    cloud.standing = Standing({(7, 0, 1): ("aws", 1)}, {7: "ada"})
    pool.submit(cloud.call("1", Launch((1, 0, 1), "bob")))
    assert cloud.begins_nothing(), "nobody knows yet what there is"
    pools.update()
    cloud.has_begun()
    pool.submit(cloud.call("2", Launch((2, 0, 1), "bob")))
    assert cloud.begins_nothing()
    assert pools.why_waiting(2, 0) == "aws has 2 of 2 machines (aws.most_machines)"
    assert pools.why_waiting(1, 0) is None
    cloud.standing = Standing(asked=frozenset({(1, 0, 1)}))
    pools.update()
    cloud.has_begun()
    assert pools.why_waiting(2, 0) is None


def test_what_was_refused_leaves_its_room_at_once(cloud: Cloud, pools_of: Callable[[Bounds], Pools]) -> None:
    pools = pools_of(Bounds(most_machines={"aws": 1}))
    pools.update()
    pools("aws").submit(cloud.call("1", Launch((1, 0, 1)), Answered(may_exist=False)))
    pools("aws").submit(cloud.call("2", Launch((2, 0, 1))))
    cloud.has_begun()
    assert cloud.begins_nothing()
    cloud.gate.release(1)
    cloud.has_begun()
    assert cloud.names == ["1", "2"]


def test_nothing_begins_after_the_end(cloud: Cloud, pools_of: Callable[[Bounds], Pools]) -> None:
    pools = pools_of(Bounds(most_in_flight={"aws": 1}))
    first = pools("aws").submit(cloud.call("1"))
    cloud.gate.release(1)
    done(first)
    pools.shutdown()
    cloud.has_begun()
    assert not pools("aws").submit(cloud.call("2")).done()
    assert cloud.begins_nothing()
