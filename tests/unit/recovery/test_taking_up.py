"""A controller that was away blames nobody for what could not be told to it; a no does not undo an earlier unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.recovery import actions, events
from perdure.recovery.attempts import CALL_BACK_S
from perdure.recovery.job import JobView, Limits, TaskView, View
from perdure.recovery.market import FaultKind, Market, MarketView, Offer, Refusal
from perdure.recovery.needs import Need
from perdure.recovery.statuses import AttemptState, NodePhase
from perdure.recovery.step import step

NOW, AWAY_S = 1_000_000.0, 3600.0
LIMITS = Limits(boot_timeout_s=100, silent_s=60, drain_s=30)
MARKET = MarketView(tuple(Offer("local", "r", zone, "s", Market.SPOT, 0.1, 1.0, 2, 8) for zone in ("a", "b")))
LAUNCHED = events.Launched(0, 1, (events.Machine(0, "i-0"),))
RUNNING = tuple(events.NodeReported(0, 1, 0, phase) for phase in (NodePhase.READY, NodePhase.RUNNING))


def told(*happened: events.Event) -> View:
    view = View(JobView(1, (TaskView(0, (Need(),), wake_at=NOW),)), MARKET, LIMITS)
    for event in (events.Tick(), *happened):
        view = replace(view, job=step(view, event, NOW).job)
    return view


@pytest.mark.parametrize(
    "happened",
    [
        pytest.param((LAUNCHED,), id="booting"),
        pytest.param((LAUNCHED, *RUNNING, events.NodeSilent(0, 1, 0)), id="silent"),
    ],
)
def test_time_in_which_no_agent_could_call_counts_against_none(happened: tuple[events.Event, ...]) -> None:
    back = replace(told(*happened), taken_up_at=NOW + AWAY_S)
    answer = step(back, events.Tick(), NOW + AWAY_S)
    assert answer.job.tasks[0].attempts[0].is_wanted
    assert answer.wake_at is not None
    patience_s = max(LIMITS.boot_timeout_s, LIMITS.silent_s)
    later = step(replace(back, job=answer.job), events.Tick(), NOW + AWAY_S + patience_s)
    assert not later.job.tasks[0].attempts[0].is_wanted


def test_a_drain_that_ended_meanwhile_may_be_told_before_its_machine_is_ended() -> None:
    back = replace(told(LAUNCHED, *RUNNING, events.NoticeGiven(0, 1, 0, NOW + 5)), taken_up_at=NOW + AWAY_S)
    answer = step(back, events.Tick(), NOW + AWAY_S)
    assert not answer.job.tasks[0].attempts[0].terminating
    later = step(replace(back, job=answer.job), events.Tick(), NOW + AWAY_S + CALL_BACK_S)
    assert later.job.tasks[0].attempts[0].terminating


@pytest.mark.parametrize("may_exist", [True, False])
def test_what_may_have_been_bought_is_looked_for_and_ended(may_exist: bool) -> None:
    refusal = Refusal("local", NOW + 60, FaultKind.RETRY_LATER, NOW)
    view = told()
    answer = step(view, events.LaunchRefused(0, 1, refusal, may_exist), NOW)
    assert any(isinstance(a, actions.Terminate) for a in answer.actions) is may_exist
    first = answer.job.tasks[0].attempt(1)
    assert (first.state if first else None) == (AttemptState.STOPPED if may_exist else None)
