"""Moves while running: the replacement first, then the drain; what happens to the one never harms the other."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from perdure.recovery import actions, events
from perdure.recovery.attempts import DRAIN_MARGIN_S
from perdure.recovery.directive import Want, directive
from perdure.recovery.history import History, learn
from perdure.recovery.job import AttemptView, JobView, Limits, Recovery, TaskView, View
from perdure.recovery.market import FaultKind, Market, MarketView, Offer, Refusal
from perdure.recovery.needs import Need
from perdure.recovery.policies.cooldown import launch_refusal
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import AttemptState, NodePhase, Status, TaskState
from perdure.recovery.step import step

DEAR = Offer("local", "west", "west-a", "small", Market.SPOT, 3.0, 9.0, 2, 8)
CHEAP = Offer("local", "east", "east-a", "small", Market.SPOT, 1.0, 9.0, 2, 8)
LIMITS = Limits(drain_s=30)


@dataclass
class Story:
    """A job of one node under VALUE, begun where it is dear. `did`: the actions of the last event."""

    job: JobView
    now: float = 1000.0
    offers: tuple[Offer, ...] = (DEAR,)
    refusals: tuple[Refusal, ...] = ()
    history: History = field(default_factory=History)
    did: list[actions.Action] = field(default_factory=list)
    wake_at: float | None = None

    def tell(self, event: events.Event) -> Story:
        done = step(
            View(self.job, MarketView(self.offers, self.refusals, history=self.history), LIMITS), event, self.now
        )
        self.job, self.did, self.wake_at = done.job, list(done.actions), done.wake_at
        self.refusals += tuple(a.refusal for a in self.did if isinstance(a, actions.Refuse))
        for action in self.did:
            if isinstance(action, actions.Learn):
                self.history = learn(self.history, action.sighting)
        return self

    def wake(self) -> Story:
        assert self.wake_at is not None
        self.now = max(self.now, self.wake_at)
        return self.tell(events.Tick())

    def bought(self, generation: int) -> Story:
        return self.tell(events.Launched(0, generation, (events.Machine(0, f"i-{generation}"),)))

    def says(self, generation: int, phase: NodePhase, **more: object) -> Story:
        return self.tell(events.NodeReported(0, generation, 0, phase, **more))  # type: ignore[arg-type]

    def ready(self, generation: int) -> Story:
        return self.bought(generation).says(generation, NodePhase.BOOTED).says(generation, NodePhase.READY)

    @property
    def task(self) -> TaskView:
        return self.job.tasks[0]

    def attempt(self, generation: int) -> AttemptView:
        found = self.task.attempt(generation)
        assert found is not None
        return found

    @property
    def launches(self) -> list[str]:
        return [a.offer.zone for a in self.did if isinstance(a, actions.Launch)]


@pytest.fixture
def moving() -> Story:
    """Generation 1 runs where it is dear; generation 2 has just been asked for, where it is cheap."""
    recovery = Recovery("VALUE", work_s=48 * 3600.0)
    story = Story(JobView(1, (TaskView(0, (Need(),), recovery=recovery, wake_at=1000.0),)))
    story.tell(events.Tick()).ready(1).says(1, NodePhase.RUNNING)
    assert story.task.status is Status.RUNNING
    story.offers = (DEAR, CHEAP)
    story.wake()
    assert story.launches == ["east-a"]
    return story


def test_the_replacement_is_set_up_while_the_old_one_runs_and_takes_over_when_it_has_drained(moving: Story) -> None:
    moving.bought(2).says(2, NodePhase.BOOTED)
    assert moving.task.state is TaskState.RUNNING
    assert directive(moving.attempt(1)).want is Want.RUN
    assert directive(moving.attempt(2)).want is Want.SETUP
    moving.says(2, NodePhase.READY)
    assert directive(moving.attempt(1)).want is Want.DRAIN
    assert directive(moving.attempt(2)).want is Want.SETUP, "never two workloads at a time"
    moving.now += 5
    moving.says(1, NodePhase.ENDED, exit_code=143, interrupted=True)
    assert directive(moving.attempt(2)).want is Want.RUN
    assert any(isinstance(a, actions.Terminate) and a.generation == 1 for a in moving.did)
    assert (moving.task.status, moving.task.recovery_count) == (Status.RUNNING, 0), "a move is no recovery"
    assert not any(r.covers(DEAR) for r in moving.refusals), "what was left by our own will did nothing wrong"


def test_a_refused_replacement_leaves_the_old_one_alone(moving: Story) -> None:
    refusal = launch_refusal(CHEAP, moving.now, kind=FaultKind.AVOID_ZONE)
    moving.tell(events.LaunchRefused(0, 2, refusal))
    assert [a.generation for a in moving.task.attempts] == [1]
    assert directive(moving.attempt(1)).want is Want.RUN
    assert moving.task.refused_in_a_row == 0
    assert moving.launches == []
    while moving.now < refusal.until:
        assert moving.launches == [], "a cool-down holds for moves as well"
        moving.wake()
    assert moving.launches == ["east-a"]


@pytest.mark.parametrize("state", [AttemptState.BOOTING, AttemptState.SETTING_UP])
def test_a_replacement_that_is_taken_away_leaves_the_old_one_alone(moving: Story, state: AttemptState) -> None:
    moving.bought(2)
    if state is AttemptState.SETTING_UP:
        moving.says(2, NodePhase.BOOTED)
    assert moving.attempt(2).state is state
    moving.tell(events.MachinesSeen(0, 2, {0: Reason.PREEMPTED}))
    assert directive(moving.attempt(1)).want is Want.RUN
    assert moving.task.recovery_count == 0
    assert any(r.covers(CHEAP) and r.from_preemption for r in moving.refusals)
    moving.tell(events.AttemptGone(0, 2))
    assert moving.task.replacement is None
    assert moving.task.status is Status.RUNNING


def test_setup_that_fails_on_the_replacement_does_not_fail_the_job(moving: Story) -> None:
    moving.bought(2).says(2, NodePhase.BOOTED)
    moving.says(2, NodePhase.ENDED, exit_code=1, failed_stage="setup")
    assert moving.task.outcome is None
    assert directive(moving.attempt(1)).want is Want.RUN
    moving.tell(events.AttemptGone(0, 2))
    assert moving.wake_at is not None


def test_the_old_one_lost_in_the_middle_the_task_goes_on_with_the_replacement(moving: Story) -> None:
    moving.bought(2).tell(events.MachinesSeen(0, 1, {0: Reason.PREEMPTED}))
    assert moving.launches == [], "the replacement is on its way already"
    assert moving.task.state is TaskState.PLACING
    assert moving.task.recovery_count == 1
    moving.says(2, NodePhase.BOOTED).says(2, NodePhase.READY)
    assert directive(moving.attempt(2)).want is Want.RUN


def test_the_old_one_finishing_first_ends_both(moving: Story) -> None:
    moving.bought(2).says(1, NodePhase.ENDED, exit_code=0)
    assert moving.task.status is Status.SUCCEEDED
    moving.tell(events.AttemptGone(0, 1)).tell(events.AttemptGone(0, 2))
    assert moving.job.is_settled


def test_an_old_one_that_does_not_drain_is_ended(moving: Story) -> None:
    moving.ready(2)
    moving.now += LIMITS.drain_s + DRAIN_MARGIN_S
    moving.tell(events.Tick())
    assert any(isinstance(a, actions.Terminate) and a.generation == 1 for a in moving.did)
    moving.tell(events.AttemptGone(0, 1))
    assert directive(moving.attempt(2)).want is Want.RUN


def test_work_is_counted_from_what_was_saved(moving: Story) -> None:
    begun = moving.attempt(1).running_at
    assert begun is not None
    moving.now = begun + 3600
    moving.tell(events.Saved(0, 1, at=begun + 3000))
    assert (moving.task.durable_s, moving.task.progress_s(moving.now)) == (3000, 3600)
    moving.tell(events.MachinesSeen(0, 1, {0: Reason.PREEMPTED}))
    assert moving.task.progress_s(moving.now) == 3000
    moving.ready(2)
    moving.now += 100
    assert moving.task.progress_s(moving.now) == 3100
    moving.tell(events.Saved(0, 1, at=moving.now))
    assert moving.task.durable_s == 3000, "word of an older run comes too late"


def test_what_was_assumed_of_runs_that_said_nothing_is_not_believed_of_a_task_that_does(moving: Story) -> None:
    """Who saves every other hour has lost what it did in the first one and a half: the first word of its own tells."""
    begun = moving.attempt(1).running_at
    assert begun is not None
    moving.now = begun + 5400
    moving.tell(events.MachinesSeen(0, 1, {0: Reason.PREEMPTED}))
    assert moving.task.progress_s(moving.now) == 1800, "while it may be one that never says anything"
    moving.ready(2)
    moving.now += 7200
    moving.tell(events.Saved(0, 2, at=moving.now))
    assert (moving.task.durable_s, moving.task.progress_s(moving.now)) == (7200, 7200)
