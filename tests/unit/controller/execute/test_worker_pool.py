"""Calls in real threads: bounded, in order, cancelled in time, and delayed by quotas."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

import pytest

from perdure.controller.execute.call_order import QueuedLaunch
from perdure.controller.execute.call_types import CallFeedback
from perdure.controller.execute.worker_pool import CloudPools
from perdure.controller.runtime.config.limits import Quotas
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.queries.usage import Usage

TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Call:
    """Stands for a `CloudCall`."""

    pool: str
    make: Callable[[], CallFeedback]
    launch: QueuedLaunch | None = None
    attempt_key: tuple[int, int, int] = (0, 0, 0)


@dataclass
class Cloud:
    """Records the calls that begin. Each call waits for a permit of `gate`."""

    names: list[str] = field(default_factory=list)
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    usage: Usage = field(default_factory=Usage)

    def call(
        self, name: str, launch: QueuedLaunch | None = None, feedback: CallFeedback | None = None, pool: str = "aws"
    ) -> Any:
        def make() -> CallFeedback:
            self.names.append(name)
            self.begun.release()
            assert self.gate.acquire(timeout=TIMEOUT_S)
            return feedback or CallFeedback()

        return Call(pool, make, launch)

    def wait_for_calls(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=TIMEOUT_S)

    def is_idle(self) -> bool:
        return not self.begun.acquire(timeout=0.05)

    def read_usage(self, _reserved: Collection[AttemptKey]) -> Usage:
        return self.usage


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


@pytest.fixture
def make_pools(cloud: Cloud) -> Iterator[Callable[[Quotas], CloudPools]]:
    made: list[CloudPools] = []

    def make(quotas: Quotas) -> CloudPools:
        made.append(CloudPools(quotas, cloud.read_usage, lambda call: call.make()))
        return made[-1]

    yield make
    cloud.gate.release(1000)
    for pools in made:
        pools.shutdown()


def wait_for(*futures: Future[Any]) -> None:
    assert not wait(futures, TIMEOUT_S).not_done


def test_submit__runs_no_more_calls_than_the_concurrency_limit(
    cloud: Cloud, make_pools: Callable[[Quotas], CloudPools]
) -> None:
    pools = make_pools(Quotas(max_concurrent_calls={"aws": 2}))
    futures = [pools.submit(cloud.call(str(job), QueuedLaunch((job, 0, 1)))) for job in range(5)]
    cloud.wait_for_calls(2)
    assert cloud.is_idle()
    cloud.gate.release(1)
    cloud.wait_for_calls(1)
    assert cloud.is_idle()
    cloud.gate.release(4)
    wait_for(*futures)
    assert sorted(cloud.names) == ["0", "1", "2", "3", "4"]


def test_submit__hanging_cloud_delays_no_other_cloud(cloud: Cloud, make_pools: Callable[[Quotas], CloudPools]) -> None:
    pools = make_pools(Quotas(max_concurrent_calls={"aws": 1, "gcp": 1}))
    pools.submit(cloud.call("hangs"))
    pools.submit(cloud.call("waits"))
    cloud.wait_for_calls()
    pools.submit(cloud.call("goes", pool="gcp"))
    cloud.wait_for_calls()
    assert cloud.names == ["hangs", "goes"]


def test_throttled_calls__halve_the_concurrency(cloud: Cloud, make_pools: Callable[[Quotas], CloudPools]) -> None:
    pools = make_pools(Quotas(max_concurrent_calls={"aws": 4}))
    throttled = CallFeedback(is_throttled=True, may_exist=False)
    for job in range(4):
        pools.submit(cloud.call(str(job), QueuedLaunch((job, 0, 1)), throttled))
    for job in range(4, 10):
        pools.submit(cloud.call(str(job), QueuedLaunch((job, 0, 1))))
    cloud.wait_for_calls(4)
    cloud.gate.release(4)
    cloud.wait_for_calls(2)
    assert cloud.is_idle()


def test_submit__control_calls_go_first_and_a_failed_call_frees_its_place(
    cloud: Cloud, make_pools: Callable[[Quotas], CloudPools]
) -> None:
    def fail() -> CallFeedback:
        raise RuntimeError("a bug")

    pools = make_pools(Quotas(max_concurrent_calls={"aws": 1}))
    pools.submit(cloud.call("first", QueuedLaunch((1, 0, 1))))
    cloud.wait_for_calls()
    futures = [
        pools.submit(cloud.call("launch", QueuedLaunch((2, 0, 1)))),
        pools.submit(Call("aws", fail)),
        pools.submit(cloud.call("terminate")),
    ]
    cloud.gate.release(3)
    wait_for(*futures)
    assert cloud.names == ["first", "terminate", "launch"]


def test_submit__cancelled_launch_is_not_made(cloud: Cloud, make_pools: Callable[[Quotas], CloudPools]) -> None:
    pools = make_pools(Quotas(max_concurrent_calls={"aws": 1}))
    first = pools.submit(cloud.call("first", QueuedLaunch((1, 0, 1))))
    cancelled = pools.submit(cloud.call("cancelled", QueuedLaunch((2, 0, 1))))
    last = pools.submit(cloud.call("last", QueuedLaunch((3, 0, 1))))
    cloud.wait_for_calls()
    assert not first.cancel(), "the call has begun"
    assert cancelled.cancel()
    cloud.gate.release(2)
    wait_for(first, last)
    assert cloud.names == ["first", "last"]


def test_why_waiting__names_the_quota_that_delays_a_launch(
    cloud: Cloud, make_pools: Callable[[Quotas], CloudPools]
) -> None:
    pools = make_pools(Quotas(max_machines={"aws": 2}))
    cloud.usage = Usage({(7, 0, 1): ("aws", 1)}, {7: "ada"})
    pools.submit(cloud.call("1", QueuedLaunch((1, 0, 1), "bob")))
    assert cloud.is_idle(), "the usage has not been read yet"
    pools.refresh_usage()
    cloud.wait_for_calls()
    pools.submit(cloud.call("2", QueuedLaunch((2, 0, 1), "bob")))
    assert cloud.is_idle()
    assert pools.why_waiting(2, 0) == "aws has 2 of 2 machines (aws.max_machines)"
    assert pools.why_waiting(1, 0) is None
    cloud.usage = Usage(requested=frozenset({(1, 0, 1)}))
    pools.refresh_usage()
    cloud.wait_for_calls()
    assert pools.why_waiting(2, 0) is None


def test_refused_launch__frees_its_quota_at_once(cloud: Cloud, make_pools: Callable[[Quotas], CloudPools]) -> None:
    pools = make_pools(Quotas(max_machines={"aws": 1}))
    pools.refresh_usage()
    pools.submit(cloud.call("1", QueuedLaunch((1, 0, 1)), CallFeedback(may_exist=False)))
    pools.submit(cloud.call("2", QueuedLaunch((2, 0, 1))))
    cloud.wait_for_calls()
    assert cloud.is_idle()
    cloud.gate.release(1)
    cloud.wait_for_calls()
    assert cloud.names == ["1", "2"]


def test_shutdown__begins_no_more_calls(cloud: Cloud, make_pools: Callable[[Quotas], CloudPools]) -> None:
    pools = make_pools(Quotas(max_concurrent_calls={"aws": 1}))
    first = pools.submit(cloud.call("1"))
    cloud.gate.release(1)
    wait_for(first)
    pools.shutdown()
    cloud.wait_for_calls()
    assert not pools.submit(cloud.call("2")).done()
    assert cloud.is_idle()
