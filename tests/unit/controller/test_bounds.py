"""Launches that have to wait, are taken back, or can never be had; and what is counted, on both databases."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.bounds import Bounds
from perdure.controller.clock import ManualClock
from perdure.controller.clouds.registry import enabled_clouds
from perdure.controller.settings import SettingsError, read_settings
from perdure.controller.store import jobs
from perdure.controller.store.standing import standing
from perdure.recovery import events
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase


class Held(Executor):
    """Makes calls when told to, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Future[Any], Any]] = []

    def submit(self, call: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls.append((Future(), call))
        return self.calls[-1][0]

    def go(self) -> None:
        calls, self.calls = self.calls, []
        for future, call in calls:
            if future.set_running_or_notify_cancel():
                future.set_result(call())


@pytest.fixture
def held(world: Any) -> Held:
    made = Held()
    world.reconciler.dispatcher.pools = lambda _name: made
    return made


def in_line(held: Held) -> list[Any]:
    return [call.launch for future, call in held.calls if not future.cancelled()]


def finish(world: Any, held: Held, seconds: float) -> None:
    for _ in range(int(seconds)):
        held.go()
        world.pass_time(1)


def test_who_is_cancelled_before_its_turn_is_never_asked_for(world: Any, held: Held) -> None:
    job = world.submit()
    assert [launch.key for launch in in_line(held)] == [(job, 0, 1)]
    world.tell(job, events.CancelRequested(0))
    assert world.job(job)["status"] == "CANCELLED"
    assert "attempt.withdrawn" in world.kinds(job)
    finish(world, held, 60)
    assert world.cloud.calls["launch"] == 0
    assert world.view(job).is_settled


def test_a_launch_that_has_begun_is_awaited_and_its_machine_ended(world: Any, held: Held) -> None:
    job = world.submit()
    held.calls[0][0].set_running_or_notify_cancel()
    world.tell(job, events.CancelRequested(0))
    assert "attempt.withdrawn" not in world.kinds(job)
    held.calls.pop(0)[1]()
    finish(world, held, 60)
    assert (world.cloud.calls["launch"], world.living()) == (1, [])
    assert world.view(job).is_settled


def test_what_an_earlier_controller_may_have_asked_for_is_looked_for(world: Any, held: Held) -> None:
    job = world.submit()
    held.calls.pop(0)[1]()  # it is bought, and nobody hears of it
    with world.database.begin() as conn:
        claims = jobs.claim(conn, "two", world.clock.now(), limit=10, take_all=True)
    world.reconciler = world.controller("two")
    world.reconciler.dispatcher.pools = lambda _name: held
    world.reconciler.adopt(claims)
    world.settle()
    world.tell(job, events.CancelRequested(0))
    finish(world, held, 60)
    assert world.living() == []
    assert world.view(job).is_settled


def test_launches_stand_in_line_by_user_priority_and_whether_the_job_has_run(world: Any, held: Held) -> None:
    job = world.submit(nodes=2)
    (first,) = in_line(held)
    assert (first.user, first.priority, first.machines, first.is_begun) == ("", 0, 2, False)
    finish(world, held, 1)
    world.run(job, nodes=2)
    world.cloud.preempt(world.living()[0])
    world.tell(job, events.NodeSilent(0, 1, 0))
    finish(world, held, 1)
    launches = [launch for launch in in_line(held) if launch is not None]
    assert [(launch.key, launch.is_begun) for launch in launches] == [((job, 0, 2), True)]


def test_more_machines_than_the_cloud_may_ever_have_fail_the_job_and_say_so(world: Any) -> None:
    dispatcher = world.reconciler.dispatcher
    dispatcher.actor = replace(dispatcher.actor, most_machines={"fake": 2})
    narrow, wide = world.submit(nodes=2), world.submit(nodes=3)
    assert world.job(narrow)["status"] == "STARTING"
    assert world.job(wide)["status"].startswith("FAILED")
    assert "3 machines at a time are more than fake.most_machines (2)" in world.job(wide)["message"]
    assert world.cloud.calls["launch"] == 1


def test_what_stands_is_counted(world: Any) -> None:
    booting, running, ended = world.submit(nodes=2), world.submit(), world.submit()
    world.run(running)
    world.run(ended)
    world.report(ended, NodePhase.ENDED, exit_code=0)
    world.pass_time(60)
    held = Held()
    world.reconciler.dispatcher.pools = lambda _name: held
    waiting = world.submit()
    with world.database.connect() as conn:
        found = standing(conn, [(waiting, 0, 1), (booting, 0, 1)])
    assert found.machines == {(booting, 0, 1): ("fake", 2), (running, 0, 1): ("fake", 1)}
    assert found.users == {booting: "", running: ""}
    assert found.asked == {(waiting, 0, 1)}


def test_a_job_between_two_machines_keeps_its_place_among_its_users(world: Any) -> None:
    job = world.submit()
    world.run(job)
    held = Held()
    world.reconciler.dispatcher.pools = lambda _name: held
    world.cloud.preempt(world.living()[0])
    world.tell(job, events.MachinesSeen(0, 1, {0: Reason.PREEMPTED}))
    finish(world, held, 1)
    assert world.job(job)["status"] == "RECOVERING"
    with world.database.connect() as conn:
        assert standing(conn, []).users == {job: ""}


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("", Bounds()),
        ("limits: {most_jobs_per_user: 5, most_running_per_user: null, drain_s: 3}", Bounds(5)),
        ("local: {most_machines: 3}\naws: {most_in_flight: 4}", Bounds(None, None, {"aws": 4}, {"local": 3})),
    ],
)
def test_bounds_are_read(tmp_path: Path, text: str, bounds: Bounds) -> None:
    (tmp_path / "config.yaml").write_text(text)
    found = read_settings(tmp_path, {})
    assert found.bounds == bounds
    enabled_clouds(found.sections, tmp_path, ManualClock())


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("limits: {most_jobs_per_user: 0}", "config.yaml:1: limits.most_jobs_per_user"),
        ("limits: {most_running_per_user: many}", "config.yaml:1: limits.most_running_per_user"),
        ("gcp:\n  most_machines: 1.5", "config.yaml:2: gcp.most_machines"),
        ("azure: {most_in_flight: true}", "config.yaml:1: azure.most_in_flight"),
        ("limits: {most_jobs: 3}", "config.yaml:1: limits.most_jobs"),
    ],
)
def test_bounds_that_can_not_be_used_are_named(tmp_path: Path, text: str, where: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_settings(tmp_path, {})
    assert where in str(caught.value)
