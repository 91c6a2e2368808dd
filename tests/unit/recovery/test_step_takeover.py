"""`step` after a takeover: time in which no agent could reach a controller does not count."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.recovery import actions, events
from perdure.recovery.heartbeat_interval import RECONNECT_S
from perdure.recovery.job import JobView, TaskView, Timeouts, View
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import Market, MarketView, Offer
from perdure.recovery.statuses import AttemptState, NodePhase
from perdure.recovery.step import step

NOW, AWAY_S = 1_000_000.0, 3600.0
TIMEOUTS = Timeouts(boot_timeout_s=100, node_timeout_s=60, drain_timeout_s=30)
MARKET = MarketView(tuple(Offer("local", "r", zone, "s", Market.SPOT, 0.1, 1.0, 2, 8) for zone in ("a", "b")))
LAUNCHED = events.Launched(0, 1, (events.Machine(0, "i-0"),))
RUNNING = tuple(events.NodeReported(0, 1, 0, phase) for phase in (NodePhase.READY, NodePhase.RUNNING))


def view_after(*sent: events.Event) -> View:
    view = View(JobView(1, (TaskView(0, (MachineRequirement(),), wake_at=NOW),)), MARKET, TIMEOUTS)
    for event in (events.Tick(), *sent):
        view = replace(view, job=step(view, event, NOW).job)
    return view


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param((LAUNCHED,), id="booting"),
        pytest.param((LAUNCHED, *RUNNING, events.NodeDisconnected(0, 1, 0)), id="disconnected"),
    ],
)
def test_takeover__timeouts_restart(sent: tuple[events.Event, ...]) -> None:
    back = replace(view_after(*sent), owned_since=NOW + AWAY_S)
    result = step(back, events.Tick(), NOW + AWAY_S)
    assert result.job.tasks[0].attempts[0].is_wanted
    assert result.wake_at is not None
    timeout_s = max(TIMEOUTS.boot_timeout_s, TIMEOUTS.node_timeout_s)
    later = step(replace(back, job=result.job), events.Tick(), NOW + AWAY_S + timeout_s)
    assert not later.job.tasks[0].attempts[0].is_wanted


def test_takeover__overdue_drain_waits_for_reconnection() -> None:
    back = replace(view_after(LAUNCHED, *RUNNING, events.PreemptionNotice(0, 1, 0, NOW + 5)), owned_since=NOW + AWAY_S)
    result = step(back, events.Tick(), NOW + AWAY_S)
    assert not result.job.tasks[0].attempts[0].terminating
    later = step(replace(back, job=result.job), events.Tick(), NOW + AWAY_S + RECONNECT_S)
    assert later.job.tasks[0].attempts[0].terminating


@pytest.mark.parametrize("may_exist", [True, False])
def test_launch_refused__terminates_machines_that_may_exist(may_exist: bool) -> None:
    unavailable = UnavailableOffer("local", NOW + 60, FaultKind.RETRY_LATER, NOW)
    view = view_after()
    result = step(view, events.LaunchRefused(0, 1, unavailable, may_exist), NOW)
    assert any(isinstance(a, actions.Terminate) for a in result.actions) is may_exist
    first = result.job.tasks[0].attempt(1)
    assert (first.state if first else None) == (AttemptState.STOPPED if may_exist else None)
