"""Nobody is woken for nothing: stories in which a wake time once stayed in the past, and was due for ever."""

from __future__ import annotations

from perdure.recovery import events
from perdure.recovery.job import JobView, Limits, TaskView, View
from perdure.recovery.market import Market, MarketView, Offer
from perdure.recovery.needs import Need
from perdure.recovery.statuses import AttemptState, NodePhase
from perdure.recovery.step import step

NOW = 1_000_000.0
LIMITS = Limits()
MARKET = MarketView(tuple(Offer("local", "r", zone, "s", Market.SPOT, 0.1, 1.0, 2, 8) for zone in ("a", "b")))


def after(*told: events.Event, nodes: int = 1, late_s: float = 0.0) -> TaskView:
    """The task after `told`, the last of it `late_s` later; at no time is a wake time asked for that has passed."""
    job = JobView(1, (TaskView(0, (Need(),), nodes, storage_ready=False, wake_at=NOW),))
    machines = tuple(events.Machine(rank, f"i-{rank}") for rank in range(nodes))
    begin = [events.Tick(), events.StorageReady(0), events.Launched(0, 1, machines)]
    if isinstance(told[0], events.NodeReported) and told[0].phase is NodePhase.BOOTED:
        begin.pop()  # an agent that calls before its launch was answered
    for event in (*begin, *told):
        now = NOW + late_s if event is told[-1] else NOW
        answer = step(View(job, MARKET, LIMITS), event, now)
        job = answer.job
        assert answer.wake_at is None or answer.wake_at > now or event is not told[-1]
    return job.tasks[0]


def test_a_late_word_that_storage_failed_leaves_no_machine_behind() -> None:
    task = after(events.StorageFailed(0, "no such bucket"))
    assert not task.status.is_terminal


def test_an_unreachable_node_that_drains() -> None:
    story = (events.NodeReported(0, 1, 0, NodePhase.READY), events.NodeSilent(0, 1, 0))
    task = after(*story, events.MachinesSeen(0, 1, {0: None}), late_s=LIMITS.silent_s)
    assert task.attempts[0].state is AttemptState.DRAINING


def test_a_failed_rank_whose_peers_drain() -> None:
    ready = [events.NodeReported(0, 1, rank, NodePhase.READY) for rank in range(2)]
    failed = events.NodeReported(0, 1, 0, NodePhase.ENDED, exit_code=1, failed_stage="run")
    seen = events.MachinesSeen(0, 1, {0: None, 1: None})
    task = after(*ready, failed, seen, ready[1], events.Tick(), nodes=2, late_s=LIMITS.recheck_s)
    assert task.attempts[0].state is AttemptState.DRAINING


def test_an_agent_that_came_and_went_before_its_launch_was_answered() -> None:
    task = after(events.NodeReported(0, 1, 0, NodePhase.BOOTED), events.NodeSilent(0, 1, 0))
    assert task.attempts[0].state is AttemptState.REQUESTED
