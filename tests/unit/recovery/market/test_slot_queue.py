"""The queue of a cluster: order, room, backfill, and what no order of jobs may ever lead to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.recovery.market import slot_queue
from perdure.recovery.market.slot_queue import (
    Demand,
    NodeRoom,
    QueuedJob,
    RunningJob,
    Start,
    can_ever_fit,
    choose_slots,
    free_rooms,
    startable,
)

NOW = 1000.0
EIGHT_GPUS = {0: NodeRoom(64, 512, (1.0,) * 8)}


def gpus(id: int, count: float, *, limit_s: float | None = None, nodes: int = 1) -> QueuedJob:
    return QueuedJob(id, Demand(gpus=count), nodes, limit_s)


def running(starts: Sequence[Start], queue: Sequence[QueuedJob], now: float = NOW) -> list[RunningJob]:
    jobs = {job.id: job for job in queue}
    return [
        RunningJob(
            jobs[start.job_id].demand,
            start.slots,
            None if (limit := jobs[start.job_id].limit_s) is None else now + limit,
        )
        for start in starts
    ]


def started(
    queue: Sequence[QueuedJob], busy: Sequence[RunningJob] = (), nodes: dict[int, NodeRoom] = EIGHT_GPUS
) -> list[int]:
    return [start.job_id for start in startable(nodes, busy, queue, NOW)]


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ([gpus(1, 8)], [1]),
        ([gpus(1, 6), gpus(2, 8)], [1]),
        ([gpus(1, 6, limit_s=600), gpus(2, 8), gpus(3, 2, limit_s=300)], [1, 3]),  # 3 ends before 2 could start
        ([gpus(1, 6, limit_s=600), gpus(2, 8), gpus(3, 2, limit_s=601)], [1]),  # 3 would delay 2
        ([gpus(1, 6, limit_s=600), gpus(2, 8), gpus(3, 2)], [1]),
        ([gpus(1, 6), gpus(2, 8), gpus(3, 2, limit_s=300)], [1]),  # 1 may end at any moment
        ([gpus(1, 6), gpus(2, 4), gpus(3, 2)], [1, 3]),  # 2 and 3 fit beside each other once 1 has ended
        ([gpus(1, 0.5), gpus(2, 0.5), gpus(3, 8)], [1, 2]),
        ([gpus(1, 9), gpus(2, 1)], [2]),  # 1 can never start, and holds up nothing
        ([gpus(1, 1, nodes=2), gpus(2, 1)], [2]),
        ([QueuedJob(1, Demand(cpus=64)), QueuedJob(2, Demand(cpus=1))], [1]),
        ([QueuedJob(1, Demand(memory_gib=400)), QueuedJob(2, Demand(memory_gib=200)), QueuedJob(3, Demand())], [1, 3]),
    ],
)
def test_startable__is_first_in_first_out_with_backfill(queue: list[QueuedJob], expected: list[int]) -> None:
    assert started(queue) == expected


def test_startable__starts_the_head_the_moment_the_job_before_it_ends() -> None:
    queue = [gpus(1, 6, limit_s=600), gpus(2, 8), gpus(3, 2, limit_s=300)]
    busy = running(startable(EIGHT_GPUS, [], queue, NOW), queue)
    assert started([queue[1]], busy[1:]) == []
    assert started([queue[1]], []) == [2]


def test_shares__of_a_gpu_are_packed() -> None:
    queue = [gpus(1, 0.3), gpus(2, 0.3), gpus(3, 0.3), gpus(4, 0.3), gpus(5, 7)]
    starts = startable(EIGHT_GPUS, [], queue, NOW)
    shares = {start.job_id: start.slots[0] for start in starts}
    assert shares[1].keys() == shares[2].keys() == shares[3].keys() != shares[4].keys()
    assert 5 not in shares, "two GPUs are shared"


def test_ranks__are_on_different_nodes() -> None:
    nodes = {rank: NodeRoom(4, 16, (1.0,)) for rank in range(3)}
    (start,) = startable(nodes, [], [gpus(1, 1, nodes=3)], NOW)
    assert sorted(start.slots) == [0, 1, 2]


demands = st.builds(
    Demand,
    cpus=st.sampled_from([0.5, 1.0, 2.0, 4.0]),
    memory_gib=st.sampled_from([0.0, 4.0, 16.0]),
    gpus=st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 4.0]),
)
limits = st.one_of(st.none(), st.sampled_from([10.0, 60.0, 600.0]))
clusters = st.integers(1, 3).map(lambda count: {rank: NodeRoom(4.0, 16.0, (1.0,) * 4) for rank in range(count)})


@st.composite
def queues(draw: st.DrawFn) -> list[QueuedJob]:
    count = draw(st.integers(0, 8))
    return [QueuedJob(id, draw(demands), draw(st.integers(1, 3)), draw(limits)) for id in range(count)]


@given(clusters, queues(), queues())
def test_startable__never_takes_more_than_there_is(
    nodes: dict[int, NodeRoom], before: list[QueuedJob], queue: list[QueuedJob]
) -> None:
    busy = running(startable(nodes, [], before, NOW), before)
    busy += running(startable(nodes, busy, queue, NOW), queue)
    for room in free_rooms(nodes, busy).values():
        assert room.cpus >= -1e-6
        assert room.memory_gib >= -1e-6
        assert all(free >= -1e-6 for free in room.gpus)


@given(clusters, queues())
def test_startable__is_steady(nodes: dict[int, NodeRoom], queue: list[QueuedJob]) -> None:
    starts = startable(nodes, [], queue, NOW)
    assert startable(nodes, [], queue, NOW) == starts
    left = [job for job in queue if job.id not in {start.job_id for start in starts}]
    assert startable(nodes, running(starts, queue), left, NOW) == []


@given(clusters, queues(), queues())
def test_backfill__never_delays_the_head(
    nodes: dict[int, NodeRoom], before: list[QueuedJob], queue: list[QueuedJob]
) -> None:
    """Played forward with every job ending at its limit, the head starts when it would have started alone."""
    busy = running(startable(nodes, [], before, NOW), before)
    heads = [job for job in queue if can_ever_fit(nodes, job.demand, job.num_nodes)]
    while heads and started(heads[:1], busy, nodes):
        busy += running(startable(nodes, busy, heads[:1], NOW), heads)
        heads = heads[1:]
    if heads:
        alone = when_started(nodes, busy, heads[:1], heads[0])
        assert when_started(nodes, busy, heads, heads[0]) <= alone


def startable_by_definition(
    nodes: dict[int, NodeRoom], busy: Sequence[RunningJob], queue: Sequence[QueuedJob]
) -> list[int]:
    """`startable`, with a reservation that is computed anew, at each end of a job, for each job behind the head."""
    rooms, busy, ids = free_rooms(nodes, busy), list(busy), list[int]()
    head: QueuedJob | None = None
    for job in queue:
        chosen = choose_slots(rooms, job.demand, job.num_nodes)
        if chosen is None:
            head = head or (job if can_ever_fit(nodes, job.demand, job.num_nodes) else None)
            continue
        ends_by = None if job.limit_s is None else NOW + job.limit_s
        lasting = RunningJob(job.demand, chosen[1], math.inf if ends_by is None else ends_by)
        if head is not None and reserved_at(head, nodes, [*busy, lasting]) > reserved_at(head, nodes, busy):
            continue
        rooms = chosen[0]
        busy.append(RunningJob(job.demand, chosen[1], ends_by))
        ids.append(job.id)
    return ids


def reserved_at(head: QueuedJob, nodes: dict[int, NodeRoom], busy: Sequence[RunningJob]) -> float:
    ends = [NOW if job.ends_by is None else max(NOW, job.ends_by) for job in busy]
    for at in sorted({NOW, *ends}):
        left = [job for job, end in zip(busy, ends, strict=True) if end > at]
        if choose_slots(free_rooms(nodes, left), head.demand, head.num_nodes) is not None:
            return at
    return math.inf


@given(clusters, queues(), queues())
def test_startable__follows_its_definition(
    nodes: dict[int, NodeRoom], before: list[QueuedJob], queue: list[QueuedJob]
) -> None:
    busy = running(startable(nodes, [], before, NOW - 30), before, NOW - 30)
    assert started(queue, busy, nodes) == startable_by_definition(nodes, busy, queue)


def test_startable__looks_at_the_running_jobs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = [RunningJob(Demand(gpus=0.125), {0: {index // 8: 0.125}}, NOW + 60 + index) for index in range(63)]
    queue = [gpus(1, 8), *(gpus(id, 0.25 + id / 10_000, limit_s=1000) for id in range(2, 500))]
    queue += [gpus(id, 0.125, limit_s=id) for id in range(500, 1000)]
    calls = itertools.count()

    def counted(*args: Any) -> Any:
        next(calls)
        return choose_slots(*args)

    monkeypatch.setattr(slot_queue, "choose_slots", counted)
    assert started(queue, busy) == []
    assert next(calls) < len(queue) + 2 * len(busy) + 600


def when_started(
    nodes: dict[int, NodeRoom], busy: Sequence[RunningJob], queue: Sequence[QueuedJob], head: QueuedJob
) -> float:
    """When `head` starts if jobs without a limit that run now end now, and those that start later never end."""
    now = NOW
    running_now = [RunningJob(job.demand, job.slots, now if job.ends_by is None else job.ends_by) for job in busy]
    waiting = list(queue)
    first = startable(nodes, busy, waiting, now)
    while True:
        if any(start.job_id == head.id for start in first):
            return now
        for start in first:
            job = next(one for one in waiting if one.id == start.job_id)
            ends_by = math.inf if job.limit_s is None else now + job.limit_s
            running_now.append(RunningJob(job.demand, start.slots, ends_by))
            waiting.remove(job)
        ends = sorted({job.ends_by for job in running_now if job.ends_by is not None and job.ends_by < math.inf})
        if not ends:
            return math.inf
        now = max(now, ends[0])
        running_now = [job for job in running_now if job.ends_by is not None and job.ends_by > now]
        first = startable(nodes, running_now, waiting, now)
