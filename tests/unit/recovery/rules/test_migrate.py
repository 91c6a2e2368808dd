"""`rules.migrate`: the replacement is set up first, then the running attempt drains; neither harms the other."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from perdure.recovery import actions, events
from perdure.recovery.directive import Target, directive_for
from perdure.recovery.job import AttemptView, JobView, Recovery, TaskView, Timeouts, View
from perdure.recovery.market.cooldown import unavailable_after_launch
from perdure.recovery.market.history import History, with_observation
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import Market, MarketView, Offer
from perdure.recovery.reasons import Reason
from perdure.recovery.rules.attempt_end import DRAIN_MARGIN_S
from perdure.recovery.statuses import AttemptState, NodePhase, Status, TaskState
from perdure.recovery.step import step

DEAR = Offer("local", "west", "west-a", "small", Market.SPOT, 3.0, 9.0, 2, 8)
CHEAP = Offer("local", "east", "east-a", "small", Market.SPOT, 1.0, 9.0, 2, 8)
TIMEOUTS = Timeouts(drain_timeout_s=30)


@dataclass
class JobDriver:
    """A job of one node under VALUE, started on an expensive offer."""

    job: JobView
    now: float = 1000.0
    offers: tuple[Offer, ...] = (DEAR,)
    unavailable: tuple[UnavailableOffer, ...] = ()
    history: History = field(default_factory=History)
    last_actions: list[actions.Action] = field(default_factory=list)  # of the last event
    wake_at: float | None = None

    def send(self, event: events.Event) -> JobDriver:
        result = step(
            View(self.job, MarketView(self.offers, self.unavailable, history=self.history), TIMEOUTS), event, self.now
        )
        self.job, self.last_actions, self.wake_at = result.job, list(result.actions), result.wake_at
        self.unavailable += tuple(a.unavailable for a in self.last_actions if isinstance(a, actions.AvoidOffer))
        for action in self.last_actions:
            if isinstance(action, actions.RecordObservation):
                self.history = with_observation(self.history, action.observation)
        return self

    def wake(self) -> JobDriver:
        assert self.wake_at is not None
        self.now = max(self.now, self.wake_at)
        return self.send(events.Tick())

    def launched(self, generation: int) -> JobDriver:
        return self.send(events.Launched(0, generation, (events.Machine(0, f"i-{generation}"),)))

    def report(self, generation: int, phase: NodePhase, **more: object) -> JobDriver:
        return self.send(events.NodeReported(0, generation, 0, phase, **more))  # type: ignore[arg-type]

    def ready(self, generation: int) -> JobDriver:
        return self.launched(generation).report(generation, NodePhase.BOOTED).report(generation, NodePhase.READY)

    @property
    def task(self) -> TaskView:
        return self.job.tasks[0]

    def attempt(self, generation: int) -> AttemptView:
        attempt = self.task.attempt(generation)
        assert attempt is not None
        return attempt

    @property
    def launches(self) -> list[str]:
        return [a.offer.zone for a in self.last_actions if isinstance(a, actions.Launch)]


@pytest.fixture
def moving() -> JobDriver:
    """Generation 1 runs on the expensive offer; generation 2 has just been requested on the cheap one."""
    recovery = Recovery("VALUE", work_s=48 * 3600.0)
    driver = JobDriver(JobView(1, (TaskView(0, (MachineRequirement(),), recovery=recovery, wake_at=1000.0),)))
    driver.send(events.Tick()).ready(1).report(1, NodePhase.RUNNING)
    assert driver.task.status is Status.RUNNING
    driver.offers = (DEAR, CHEAP)
    driver.wake()
    assert driver.launches == ["east-a"]
    return driver


def test_switch_over__waits_until_running_attempt_has_drained(moving: JobDriver) -> None:
    moving.launched(2).report(2, NodePhase.BOOTED)
    assert moving.task.state is TaskState.RUNNING
    assert directive_for(moving.attempt(1)).target is Target.RUN
    assert directive_for(moving.attempt(2)).target is Target.SETUP
    moving.report(2, NodePhase.READY)
    assert directive_for(moving.attempt(1)).target is Target.DRAIN
    assert directive_for(moving.attempt(2)).target is Target.SETUP, "never two workloads at a time"
    moving.now += 5
    moving.report(1, NodePhase.ENDED, exit_code=143, interrupted=True)
    assert directive_for(moving.attempt(2)).target is Target.RUN
    assert any(isinstance(a, actions.Terminate) and a.generation == 1 for a in moving.last_actions)
    assert (moving.task.status, moving.task.recovery_count) == (Status.RUNNING, 0), "a move is no recovery"
    assert not any(r.covers(DEAR) for r in moving.unavailable), "an offer that was left voluntarily is not avoided"


def test_replacement__refused_leaves_running_attempt_alone(moving: JobDriver) -> None:
    refused = unavailable_after_launch(CHEAP, moving.now, kind=FaultKind.AVOID_ZONE)
    moving.send(events.LaunchRefused(0, 2, refused))
    assert [a.generation for a in moving.task.attempts] == [1]
    assert directive_for(moving.attempt(1)).target is Target.RUN
    assert moving.task.consecutive_refusals == 0
    assert moving.launches == []
    while moving.now < refused.until:
        assert moving.launches == [], "a cool-down applies to moves as well"
        moving.wake()
    assert moving.launches == ["east-a"]


@pytest.mark.parametrize("state", [AttemptState.BOOTING, AttemptState.SETTING_UP])
def test_replacement__preempted_leaves_running_attempt_alone(moving: JobDriver, state: AttemptState) -> None:
    moving.launched(2)
    if state is AttemptState.SETTING_UP:
        moving.report(2, NodePhase.BOOTED)
    assert moving.attempt(2).state is state
    moving.send(events.MachinesDescribed(0, 2, {0: Reason.PREEMPTED}))
    assert directive_for(moving.attempt(1)).target is Target.RUN
    assert moving.task.recovery_count == 0
    assert any(r.covers(CHEAP) and r.from_preemption for r in moving.unavailable)
    moving.send(events.AttemptGone(0, 2))
    assert moving.task.replacement is None
    assert moving.task.status is Status.RUNNING


def test_replacement__failed_setup_does_not_fail_job(moving: JobDriver) -> None:
    moving.launched(2).report(2, NodePhase.BOOTED)
    moving.report(2, NodePhase.ENDED, exit_code=1, failed_stage="setup")
    assert moving.task.outcome is None
    assert directive_for(moving.attempt(1)).target is Target.RUN
    moving.send(events.AttemptGone(0, 2))
    assert moving.wake_at is not None


def test_replacement__takes_over_when_running_attempt_is_lost(moving: JobDriver) -> None:
    moving.launched(2).send(events.MachinesDescribed(0, 1, {0: Reason.PREEMPTED}))
    assert moving.launches == [], "the replacement has been requested already"
    assert moving.task.state is TaskState.PROVISIONING
    assert moving.task.recovery_count == 1
    moving.report(2, NodePhase.BOOTED).report(2, NodePhase.READY)
    assert directive_for(moving.attempt(2)).target is Target.RUN


def test_replacement__is_terminated_when_running_attempt_succeeds(moving: JobDriver) -> None:
    moving.launched(2).report(1, NodePhase.ENDED, exit_code=0)
    assert moving.task.status is Status.SUCCEEDED
    moving.send(events.AttemptGone(0, 1)).send(events.AttemptGone(0, 2))
    assert moving.job.is_finalized


def test_switch_over__terminates_attempt_that_does_not_drain(moving: JobDriver) -> None:
    moving.ready(2)
    moving.now += TIMEOUTS.drain_timeout_s + DRAIN_MARGIN_S
    moving.send(events.Tick())
    assert any(isinstance(a, actions.Terminate) and a.generation == 1 for a in moving.last_actions)
    moving.send(events.AttemptGone(0, 1))
    assert directive_for(moving.attempt(2)).target is Target.RUN


def test_progress__is_counted_from_durable_work(moving: JobDriver) -> None:
    running_at = moving.attempt(1).running_at
    assert running_at is not None
    moving.now = running_at + 3600
    moving.send(events.CheckpointDurable(0, 1, at=running_at + 3000))
    assert (moving.task.durable_s, moving.task.progress_s(moving.now)) == (3000, 3600)
    moving.send(events.MachinesDescribed(0, 1, {0: Reason.PREEMPTED}))
    assert moving.task.progress_s(moving.now) == 3000
    moving.ready(2)
    moving.now += 100
    assert moving.task.progress_s(moving.now) == 3100
    moving.send(events.CheckpointDurable(0, 1, at=moving.now))
    assert moving.task.durable_s == 3000, "a report of an older run is ignored"


def test_progress__assumption_is_dropped_at_first_report(moving: JobDriver) -> None:
    """A task that saves every two hours has lost its first 1.5 hours, which shows at its first report."""
    running_at = moving.attempt(1).running_at
    assert running_at is not None
    moving.now = running_at + 5400
    moving.send(events.MachinesDescribed(0, 1, {0: Reason.PREEMPTED}))
    assert moving.task.progress_s(moving.now) == 1800, "while it may never report"
    moving.ready(2)
    moving.now += 7200
    moving.send(events.CheckpointDurable(0, 2, at=moving.now))
    assert (moving.task.durable_s, moving.task.progress_s(moving.now)) == (7200, 7200)
