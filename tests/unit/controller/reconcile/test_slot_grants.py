"""When the queues of clusters are evaluated, and what one of them costs the others."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import OperationalError
from sqlmodel import SQLModel

from perdure.controller.reconcile import slot_grants
from perdure.controller.reconcile.inbox import ReconcilerInbox
from perdure.controller.reconcile.market_state import MarketState
from perdure.controller.reconcile.slot_grants import REFRESH_S, SlotGrants
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.records import cluster_slots, clusters
from perdure.controller.store.records.clusters import ClusterHost
from perdure.recovery.market.slot_queue import Demand, QueuedJob
from support.helpers.timing import wait_until

BUSY, QUIET = 1, 2
AWAY = OperationalError("select", {}, Exception("the server closed the connection"))


class Grants:
    """A market that records which jobs were granted a slot, or none."""

    def __init__(self) -> None:
        self.granted: list[int] = []

    def grant(self, job_id: int, _offer: object) -> None:
        self.granted.append(job_id)


class Queue(SlotGrants):
    """The queues of a database. `refreshed`: the hosts whose nodes were sent their slots."""

    def __init__(self, database: Engine) -> None:
        self.grants, self.clock, self.refreshed = Grants(), ManualClock(), list[AttemptKey]()
        market, inbox = cast("MarketState", self.grants), cast("ReconcilerInbox", SimpleNamespace())
        super().__init__(database, self.clock, market, inbox, self.refreshed.append)


@pytest.fixture
def queue() -> Queue:
    database = create_engine("sqlite://")
    SQLModel.metadata.create_all(database)
    return Queue(database)


def job_of(_conn: Any, cluster_id: int) -> list[tuple[QueuedJob, bool]]:
    """One job waits in each cluster; its id is ten times that of the cluster."""
    return [(QueuedJob(10 * cluster_id, Demand()), True)]


def test_queue__is_evaluated_however_many_hints_another_one_gets(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_grants, "INTERVAL_S", 0.02)
    whole: list[bool] = []
    enough = threading.Event()

    def evaluate(*, everything: bool) -> None:
        whole.append(everything)
        if whole.count(True) > 3:
            enough.set()
        queue.wake(BUSY)  # a job has ended

    monkeypatch.setattr(queue, "evaluate", evaluate)
    queue.start()
    try:
        wait_until(enough.is_set, "the evaluation of all queues", 20)
    finally:
        queue.stop()
    assert False in whole


def test_hint__is_kept_while_the_database_is_away(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise AWAY

    queue.wake(QUIET)
    with monkeypatch.context() as patch:
        patch.setattr(clusters, "waiting_jobs", away)
        with pytest.raises(OperationalError):
            queue.evaluate(everything=False)
    monkeypatch.setattr(clusters, "waiting_jobs", job_of)
    queue.evaluate(everything=False)
    assert queue.grants.granted == [10 * QUIET]
    queue.evaluate(everything=False)
    assert queue.grants.granted == [10 * QUIET], "the hint was used"


def test_queue__that_cannot_be_evaluated_costs_no_other(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def waiting(conn: Any, cluster_id: int) -> list[tuple[QueuedJob, bool]]:
        if cluster_id == BUSY:
            raise KeyError("slot")
        return job_of(conn, cluster_id)

    monkeypatch.setattr(clusters, "waiting_jobs", waiting)
    queue.wake(BUSY)
    queue.wake(QUIET)
    queue.evaluate(everything=False)
    assert queue.grants.granted == [10 * QUIET]


def test_slots__are_sent_when_they_change_and_after_a_while(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = SimpleNamespace(generation=3, rooms=dict, offer={})
    host = cast("ClusterHost", SimpleNamespace(job_id=5, running=attempt))
    slot = SimpleNamespace(job_id=7, task_index=0, generation=1, rank=0, stop_at=None, host_rank=0, gpu_shares=[])
    held = [SimpleNamespace(**vars(slot), cpus=1.0, memory_gib=0.0, gpus=0.0)]
    cluster = SimpleNamespace(name="dev", autostop_s=None, active_at=0.0)
    monkeypatch.setattr(clusters, "hosts", lambda _conn, ids: dict.fromkeys(ids, host))
    monkeypatch.setattr(clusters, "get", lambda _conn, _id: cluster)
    monkeypatch.setattr(cluster_slots, "held", lambda _conn, _id: list(held))

    def sent() -> int:
        queue.refreshed.clear()
        queue.wake(QUIET)
        queue.evaluate(everything=False)
        assert set(queue.refreshed) <= {(5, 0, attempt.generation)}
        return len(queue.refreshed)

    assert [sent(), sent()] == [1, 0]
    held[0].stop_at = 1.0  # by this controller, or by another one
    assert [sent(), sent()] == [1, 0]
    cluster.autostop_s = 60.0
    assert [sent(), sent()] == [1, 0]
    held.clear()
    assert [sent(), sent()] == [1, 0]
    queue.clock.advance(REFRESH_S)
    assert [sent(), sent()] == [1, 0]
    attempt.generation = 4
    assert [sent(), sent()] == [1, 0]
