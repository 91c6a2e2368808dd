"""Wake times lie in the future: cases in which one once stayed in the past and was due forever."""

from __future__ import annotations

from perdure.recovery import events
from perdure.recovery.job import JobView, TaskView, Timeouts, View
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.view import Market, MarketView, Offer
from perdure.recovery.statuses import AttemptState, NodePhase
from perdure.recovery.step import step

NOW = 1_000_000.0
TIMEOUTS = Timeouts()
MARKET = MarketView(tuple(Offer("local", "r", zone, "s", Market.SPOT, 0.1, 1.0, 2, 8) for zone in ("a", "b")))


def after(*received: events.Event, nodes: int = 1, late_s: float = 0.0) -> TaskView:
    """The task after `received`, the last event `late_s` later. Asserts that the wake time has not passed."""
    job = JobView(1, (TaskView(0, (MachineRequirement(),), nodes, storage_ready=False, wake_at=NOW),))
    machines = tuple(events.Machine(rank, f"i-{rank}") for rank in range(nodes))
    setup = [events.Tick(), events.StorageReady(0), events.Launched(0, 1, machines)]
    if isinstance(received[0], events.NodeReported) and received[0].phase is NodePhase.BOOTED:
        setup.pop()  # an agent that connects before the result of its launch
    for event in (*setup, *received):
        now = NOW + late_s if event is received[-1] else NOW
        result = step(View(job, MARKET, TIMEOUTS), event, now)
        job = result.job
        assert result.wake_at is None or result.wake_at > now or event is not received[-1]
    return job.tasks[0]


def test_step__ignores_storage_failure_after_storage_was_ready() -> None:
    task = after(events.StorageFailed(0, "no such bucket"))
    assert not task.status.is_terminal


def test_step__wakes_in_future_after_unreachable_node() -> None:
    story = (events.NodeReported(0, 1, 0, NodePhase.READY), events.NodeDisconnected(0, 1, 0))
    task = after(*story, events.MachinesDescribed(0, 1, {0: None}), late_s=TIMEOUTS.node_timeout_s)
    assert task.attempts[0].state is AttemptState.DRAINING


def test_step__wakes_in_future_while_failed_attempt_drains() -> None:
    ready = [events.NodeReported(0, 1, rank, NodePhase.READY) for rank in range(2)]
    failed = events.NodeReported(0, 1, 0, NodePhase.ENDED, exit_code=1, failed_stage="run")
    seen = events.MachinesDescribed(0, 1, {0: None, 1: None})
    task = after(*ready, failed, seen, ready[1], events.Tick(), nodes=2, late_s=TIMEOUTS.describe_interval_s)
    assert task.attempts[0].state is AttemptState.DRAINING


def test_step__wakes_in_future_if_agent_disconnects_before_launch_result() -> None:
    task = after(events.NodeReported(0, 1, 0, NodePhase.BOOTED), events.NodeDisconnected(0, 1, 0))
    assert task.attempts[0].state is AttemptState.REQUESTED
