"""Turns that somebody waits for while the database can not be used: told so after a while, and void then."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from holdfast.controller.api import jobs as api
from holdfast.controller.mail import Outgoing
from holdfast.controller.refusing import Refused
from holdfast.controller.store.letters import Letters
from holdfast.controller.turns import Turn
from holdfast.recovery import events

FULL = OperationalError("COMMIT", None, Exception("database or disk is full"))
PATIENCE_S = 3.0


class Full:
    """A database that takes nothing as long as it `is_full`; or that takes it, and says that it did not."""

    def __init__(self, database: Any, *, but_takes_it: bool = False) -> None:
        self._database, self._takes_it, self.is_full = database, but_takes_it, True
        self.connect = database.connect

    @contextmanager
    def begin(self) -> Iterator[Any]:
        if not self.is_full:
            with self._database.begin() as conn:
                yield conn
            return
        with self._database.connect() as conn:
            yield conn
            if self._takes_it:
                conn.commit()
        raise FULL


def fill(world: Any, **how: Any) -> Full:
    disk = Full(world.database, **how)
    world.reconciler._recorder.database = world.reconciler._outage._database = disk
    return disk


def cancel(world: Any, job: int) -> Future[None]:
    asked = Turn(job, events.CancelRequested(0.0), until=world.clock.now() + PATIENCE_S)
    done: Future[None] = world.reconciler.post(asked)
    world.settle()
    return done


def test_who_asks_for_a_cancel_is_told_soon_that_the_disk_is_full_and_it_is_not_done_later(world: Any) -> None:
    job = world.submit()
    world.run(job)
    disk = fill(world)
    done = cancel(world, job)
    world.pass_time(PATIENCE_S - 1)
    assert not done.done(), "it may pass"
    world.pass_time(2)
    assert done.exception(0) is FULL
    again = cancel(world, job)
    world.pass_time(PATIENCE_S + 1)
    assert again.exception(0) is FULL
    disk.is_full = False
    world.pass_time(60)
    assert world.job(job)["status"] == "RUNNING"
    assert world.view(job) == world.reconciler.view(job)
    assert cancel(world, job).exception(0) is None
    world.pass_time(60)
    assert world.job(job)["status"] == "CANCELLED"


def test_a_disk_that_is_full_for_a_moment_is_waited_for(world: Any) -> None:
    job = world.submit()
    world.run(job)
    disk = fill(world)
    done = cancel(world, job)
    world.pass_time(PATIENCE_S - 1)
    disk.is_full = False
    world.pass_time(60)
    assert done.exception(0) is None
    assert world.job(job)["status"] == "CANCELLED"


def test_what_nodes_said_is_kept_until_there_is_room(world: Any) -> None:
    job = world.submit()
    world.run(job)
    disk = fill(world)
    said = world.reconciler.post(Turn(job, events.CancelRequested(0.0)))
    world.pass_time(10 * PATIENCE_S)
    assert not said.done()
    disk.is_full = False
    world.pass_time(60)
    assert said.exception(0) is None
    assert world.job(job)["status"] == "CANCELLED"


def test_a_cancel_that_was_recorded_all_the_same_is_carried_out(world: Any) -> None:
    job = world.submit()
    world.run(job)
    disk = fill(world, but_takes_it=True)
    done = world.reconciler.post(Turn(job, events.CancelRequested(0.0), until=world.clock.now()))
    world.settle()
    assert done.exception(0) is FULL
    disk.is_full = False
    world.pass_time(60)
    assert world.job(job)["status"] == "CANCELLED"
    assert world.living() == []


def test_a_letter_that_can_not_be_written_is_given_up_too(world: Any) -> None:
    job = world.submit()
    outgoing = Outgoing(Full(world.database), world.clock)  # type: ignore[arg-type]
    turn, done = Turn(job, events.CancelRequested(0.0), until=world.clock.now()).awaited()
    outgoing.forward(turn)
    assert done.exception(30) is FULL
    outgoing.close()
    with world.database.connect() as conn:
        assert conn.execute(select(Letters)).all() == []


def futures(*answers: Exception | None) -> dict[int, Future[None]]:
    made: dict[int, Future[None]] = {}
    for id, answer in enumerate(answers, 1):
        made[id] = Future()
        if answer is None:
            made[id].set_result(None)
        else:
            made[id].set_exception(answer)
    return made


def test_who_cancels_several_is_told_which_of_them_will_end() -> None:
    api._await_recorded(futures(None, None))
    with pytest.raises(OperationalError, match="disk is full"):
        api._await_recorded(futures(FULL, FULL))
    with pytest.raises(Refused, match=r"jobs 2, 3 will not end.*disk is full") as some:
        api._await_recorded(futures(None, FULL, FULL))
    assert (some.value.status, some.value.fix) == (503, "do it again when it can; job 1 will end")


def test_a_controller_that_is_behind_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_RECORDED_WITHIN_S", 0.0)
    with pytest.raises(Refused, match=r"behind.* job 2$") as late:
        api._await_recorded({**futures(None), 2: Future()})
    assert late.value.status == 503
