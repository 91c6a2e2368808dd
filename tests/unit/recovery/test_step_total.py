"""`step` is total: whatever an event holds, nothing is raised, and no time that is not a number is stored.

The border of the controller rejects most of these events. `step` does not rely on that: an event that it cannot take
would be delivered forever.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from functools import cache
from math import inf, isfinite, nan
from typing import get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.recovery import actions, events
from perdure.recovery.job import View
from perdure.recovery.market.cooldown import unavailable_after_launch
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import MarketView
from perdure.recovery.reasons import MEANINGS, Reason
from perdure.recovery.statuses import AttemptState, NodePhase, Status
from perdure.recovery.step import step
from support.worlds.job_driver import TIMEOUTS, new_job
from support.worlds.step_moves import make, random_moves, random_world
from support.worlds.step_walk import NOW, OFFERS

each_time = pytest.mark.parametrize("time", [nan, inf, -inf])

# Ranks, tasks and generations that exist are more likely than others.
NUMBERS = st.integers(0, 2) | st.integers(-2, 4) | st.integers()
TIMES = st.floats() | st.floats(NOW - 1e5, NOW + 1e5)
STAGES = st.none() | st.sampled_from(["mounts", "setup", "run", "flush", "files"]) | st.text(max_size=5)
REFUSALS = st.builds(
    UnavailableOffer,
    st.sampled_from(["local", "other"]),
    TIMES,
    st.sampled_from(FaultKind),
    TIMES,
    **{name: st.none() | st.sampled_from([getattr(o, name) for o in OFFERS]) for name in ("region", "zone", "market")},
    from_preemption=st.booleans(),
)
FIELDS = {
    int: NUMBERS,
    int | None: st.none() | NUMBERS,
    float: TIMES,
    str: st.text(max_size=5),
    UnavailableOffer: REFUSALS,
    tuple[events.Machine, ...]: st.lists(st.builds(events.Machine, NUMBERS, st.text(max_size=3))).map(tuple),
    dict[int, Reason | None]: st.dictionaries(NUMBERS, st.none() | st.sampled_from(Reason), max_size=4),
}


def events_of(kind: type) -> st.SearchStrategy[events.Event]:
    """Events of `kind`, with any values of the types of its fields."""
    strategies = {name: FIELDS.get(hint, st.from_type(hint)) for name, hint in get_type_hints(kind).items()}
    if "failed_stage" in strategies:
        strategies["failed_stage"] = STAGES
    return st.builds(kind, **strategies)


ANY_EVENT = st.one_of([events_of(kind) for kind in get_args(events.Event)])


@cache
def view_after(seed: int, moves: int) -> View:
    """What a walk of so many moves leads to."""
    walk = random_world(seed)
    walk.send(events.Tick())
    for move in random_moves(seed)[:moves]:
        make(walk, move)
    return walk.view


@settings(max_examples=500)
@given(
    seed=st.integers(0, 60),
    moves=st.sampled_from([4, 8, 12, 16, 24, 40]),
    received=st.lists(st.tuples(st.floats(-1e5, 1e5), ANY_EVENT | st.just(events.Tick())), min_size=1, max_size=12),
)
def test_step__raises_nothing_whatever_an_event_holds(
    seed: int, moves: int, received: list[tuple[float, events.Event]]
) -> None:
    """Also if the clock goes back."""
    view = view_after(seed, moves)
    for late_s, event in received:
        result = step(view, event, NOW + 3e4 + late_s)
        assert result.wake_at is None or isfinite(result.wake_at)
        check_times(result.job)
        market = view.market
        avoided = tuple(a.unavailable for a in result.actions if isinstance(a, actions.AvoidOffer))
        history = market.history
        for action in result.actions:
            if isinstance(action, actions.RecordObservation):
                history = action.apply_to(history)
        assert all(isfinite(u.until) and isfinite(u.at) for u in avoided)
        view = View(result.job, MarketView(market.offers, (*market.unavailable, *avoided), history=history))


def check_times(value: object) -> None:
    """No number in `value` is NaN or infinite."""
    if isinstance(value, float):
        assert isfinite(value)
    elif isinstance(value, tuple):
        for one in value:
            check_times(one)
    elif is_dataclass(value):
        for field in fields(value):
            check_times(getattr(value, field.name))


# --- what becomes of such an event ------------------------------------------------------------------------------------


@each_time
def test_event__with_time_that_is_not_finite_is_ignored(time: float) -> None:
    driver = new_job().running()
    for event in (
        events.PreemptionNotice(0, 1, 0, time),
        events.CancelRequested(time),
        events.CheckpointDurable(0, 1, time),
    ):
        before, wake_at = driver.job, driver.wake_at
        driver.send(event)
        assert (driver.job, driver.wake_at, driver.last_actions) == (before, wake_at, [])


@pytest.mark.parametrize(
    "event",
    [
        events.NodeDisconnected(0, 1, -1),
        events.PreemptionNotice(0, 1, 1, 1030.0),
        events.AttemptGone(-1, 1),
        events.AttemptGone(7, 1),
        events.MachinesDescribed(0, 9, {0: Reason.PREEMPTED}),
        events.StorageReady(0),
        events.StorageFailed(1, "not asked for"),
        events.Launched(3, 1, ()),
    ],
)
def test_event__about_nothing_that_exists_is_ignored(event: events.Event) -> None:
    driver = new_job(tasks=2).running()
    before, wake_at = driver.job, driver.wake_at
    driver.send(event)
    assert (driver.job, driver.wake_at, driver.last_actions) == (before, wake_at, [])


@pytest.mark.parametrize("event", [events.StorageReady(1), events.StorageFailed(1, "none")])
def test_storage_answer__before_it_was_requested_is_ignored(event: events.Event) -> None:
    driver = new_job(tasks=2).running()
    driver.job = driver.job.with_task(replace(driver.job.tasks[1], storage_ready=False))
    before = driver.job
    assert driver.send(event).job == before


@each_time
def test_refusal__with_times_that_are_not_finite_counts_from_now(time: float) -> None:
    failure = unavailable_after_launch(OFFERS[0], NOW, kind=FaultKind.AVOID_ZONE)
    driver = new_job().tick()
    driver.send(events.LaunchRefused(0, 1, replace(failure, at=time, until=time)))
    assert [(r.at, r.until) for r in driver.refusals] == [(driver.now, driver.now + 180)]
    assert driver.attempt.generation == 2


def test_refusal__of_launched_attempt_is_ignored() -> None:
    failure = unavailable_after_launch(OFFERS[0], NOW, kind=FaultKind.AVOID_ZONE)
    driver = new_job().running().send(events.LaunchRefused(0, 1, failure))
    assert driver.attempt.state is AttemptState.RUNNING
    assert not driver.last_actions


def test_machine__that_waits_in_a_queue_has_its_time_to_connect_later() -> None:
    timeout_s = TIMEOUTS.boot_timeout_s
    driver = new_job().tick().launched()
    driver.send(events.MachinesDescribed(0, 1, {0: None}, waiting=frozenset({0})), after_s=timeout_s - 1)
    assert driver.tick(after_s=timeout_s - 1).attempt.state is AttemptState.BOOTING
    assert driver.tick(after_s=2).attempt.generation == 2, "the first was given up"


# The cloud ended the machine for what the task did on it.
OWN_FAILURES = {Reason.RUN_FAILED: Status.FAILED, Reason.PRECHECKS_FAILED: Status.FAILED_PRECHECKS}


@pytest.mark.parametrize(("reason", "status"), OWN_FAILURES.items())
def test_machine__that_its_task_has_ended_fails_the_task(reason: Reason, status: Status) -> None:
    driver = new_job().running().send(events.MachinesDescribed(0, 1, {0: reason}, {0: "OOMKilled"}))
    assert driver.task.status is status
    assert "OOMKilled" in driver.task.message


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason not in OWN_FAILURES])
def test_machine__that_is_gone_is_lost_for_whatever_reason(reason: Reason) -> None:
    driver = new_job().running().send(events.MachinesDescribed(0, 1, {0: reason}))
    assert driver.task.status is Status.RECOVERING
    lost = driver.task.attempts[0].nodes[0].gone_reason
    assert lost is (reason if reason in MEANINGS and MEANINGS[reason].recovers else Reason.MACHINE_CRASHED)


def test_node__that_has_ended_reports_nothing_else() -> None:
    driver = new_job(nodes=2).running().report(NodePhase.ENDED, rank=0, failed_stage="run", exit_code=1)
    driver.report(NodePhase.ENDED, rank=0, exit_code=0)
    assert driver.attempt.nodes[0].exit_code == 1


def test_steps__that_are_no_count_give_no_estimate() -> None:
    driver = new_job().running()
    for step_number in (1, 10**400):
        driver.send(events.CheckpointDurable(0, 1, driver.now + 60, step_number, 10**400), after_s=60)
    assert driver.task.work_s is None
