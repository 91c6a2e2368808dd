"""The reconcile loop with a database that is away, does not answer a commit, or rejects one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DataError, OperationalError

from perdure.controller.reconcile.recorder import Decision
from perdure.controller.reconcile.work_items import JobEvent
from perdure.controller.store.records.intents import Intent
from perdure.recovery import events
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase
from unit.controller.world import World


class FlakyDatabase:
    """A database whose next transactions fail: at "begin", or when "committed", so that only the answer is lost."""

    def __init__(self, database: Engine, *moments: str) -> None:
        self._database, self._moments = database, list(moments)
        self.connect = database.connect

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        moment = self._moments.pop(0) if self._moments else None
        if moment == "begin":
            raise OperationalError("BEGIN", None, Exception("no connection"))
        with self._database.begin() as conn:
            yield conn
        if moment == "committed":
            raise OperationalError("COMMIT", None, Exception("the connection broke"))


def test_locked_database__delays_the_job_and_loses_no_event(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.submit()
    record, failures = world.reconciler._recorder.record, [3]

    def refuse(*args: Any) -> list[list[Intent] | None]:
        if failures[0]:
            failures[0] -= 1
            raise OperationalError("BEGIN", {}, Exception("database is locked"))
        return record(*args)

    monkeypatch.setattr(world.reconciler._recorder, "record", refuse)
    world.run(job)
    world.pass_time(10)
    assert world.job(job)["status"] == "RUNNING"


def test_failed_event__is_not_overtaken(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.reconciler._recorder.database = FlakyDatabase(world.database, "begin")  # type: ignore[assignment]
    world.deliver(job, events.NodeDisconnected(0, 1, 0))
    world.report(job, NodePhase.RUNNING)  # the node is connected again
    world.pass_time(2)
    node = world.view(job).tasks[0].attempts[0].nodes[0]
    assert node.connected
    assert node.disconnected_since is None
    world.pass_time(world.timeouts.node_timeout_s + 10)
    assert world.job(job)["recovery_count"] == 0


def test_unknown_commit__is_recognized(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.reconciler._recorder.database = FlakyDatabase(world.database, "committed")  # type: ignore[assignment]
    world.cloud.preempt(world.living()[0])
    world.deliver(job, events.MachinesDescribed(0, 1, {0: Reason.PREEMPTED}))
    world.pass_time(5)
    assert world.view(job) == world.inbox.view(job)
    assert len(world.living()) == 1
    world.run(job, generation=2)
    assert world.job(job)["recovery_count"] == 1


def test_unknown_commit__of_every_transaction_is_recorded_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every transaction is committed, but its connection breaks before the answer arrives."""
    record, broken = world.reconciler._recorder.record, set()

    def break_once(decisions: Sequence[Decision], now: float) -> list[list[Intent] | None]:
        added, job_event = record(decisions, now), decisions[0].event
        if added[0] is not None and id(job_event) not in broken:
            broken.add(id(job_event))
            lost_answers.append(job_event)
            raise OperationalError("COMMIT", {}, Exception("server closed the connection unexpectedly"))
        return added

    lost_answers: list[JobEvent | None] = []
    monkeypatch.setattr(world.reconciler._recorder, "record", break_once)
    job = world.submit()
    world.pass_time(5)
    for phase in (NodePhase.BOOTED, NodePhase.READY, NodePhase.RUNNING):
        world.report(job, phase)
        world.pass_time(3)
    assert world.job(job)["status"] == "RUNNING"
    assert world.view(job) == world.inbox.view(job)
    world.report(job, NodePhase.ENDED, exit_code=0)
    world.pass_time(20)
    assert world.job(job)["status"] == "SUCCEEDED"
    assert world.job(job)["generation"] == 1
    assert world.cloud.calls["launch"] == 1
    assert world.living() == []
    assert len(lost_answers) >= 6


def test_rejected_row__does_not_delay_other_jobs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, other = world.submit(), world.submit()
    record = world.reconciler._recorder.record

    def refuse(decisions: Sequence[Decision], now: float) -> list[list[Intent] | None]:
        if any(decision.event.job_id == stuck for decision in decisions):
            raise DataError("UPDATE", {}, Exception("text fields cannot contain NUL"))
        return record(decisions, now)

    monkeypatch.setattr(world.reconciler._recorder, "record", refuse)
    world.report(stuck, NodePhase.BOOTED)
    world.run(other)
    assert world.job(other)["status"] == "RUNNING", "without a pause"
    monkeypatch.undo()
    world.pass_time(40)
    assert world.view(stuck).tasks[0].attempts[0].nodes[0].phase is NodePhase.BOOTED
