"""Drives a job through `step`, event by event: `new_job().running().send(…)`."""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.recovery import actions, events
from perdure.recovery.job import AttemptView, JobView, Recovery, TaskView, Timeouts, View
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.unavailable import UnavailableOffer
from perdure.recovery.market.view import Market, MarketView, Offer
from perdure.recovery.statuses import NodePhase
from perdure.recovery.step import step

ZONES = {"east-a": 0.10, "east-b": 0.12, "west-a": 0.15}
OFFERS = tuple(
    Offer("local", zone.split("-")[0], zone, "small", Market.SPOT, price, 0.4, 2, 8) for zone, price in ZONES.items()
)
TIMEOUTS = Timeouts(boot_timeout_s=100, node_timeout_s=60, drain_timeout_s=30, describe_interval_s=5)


@dataclass
class JobDriver:
    """A job, driven event by event."""

    job: JobView
    now: float = 1000.0
    refusals: tuple[UnavailableOffer, ...] = ()
    offers: tuple[Offer, ...] = OFFERS
    last_actions: list[actions.Action] = field(default_factory=list)  # of the last event
    wake_at: float | None = None

    def send(self, event: events.Event, after_s: float = 0.0) -> JobDriver:
        self.now += after_s
        market = MarketView(self.offers, tuple(r for r in self.refusals if r.until > self.now))
        result = step(View(self.job, market, TIMEOUTS), event, self.now)
        self.job, self.last_actions, self.wake_at = result.job, list(result.actions), result.wake_at
        self.refusals += tuple(a.unavailable for a in self.last_actions if isinstance(a, actions.AvoidOffer))
        return self

    def tick(self, after_s: float = 0.0) -> JobDriver:
        return self.send(events.Tick(), after_s)

    @property
    def task(self) -> TaskView:
        return self.job.current_task or self.job.tasks[-1]

    @property
    def attempt(self) -> AttemptView:
        return self.task.attempts[-1]

    def actions_of(self, kind: type) -> list[actions.Action]:
        return [a for a in self.last_actions if isinstance(a, kind)]

    def launched(self, generation: int | None = None) -> JobDriver:
        generation = generation or self.attempt.generation
        machines = tuple(
            events.Machine(r, f"i-{generation}-{r}", f"127.0.0.{r + 1}") for r in range(self.task.num_nodes)
        )
        return self.send(events.Launched(self.task.index, generation, machines))

    def report(
        self, phase: NodePhase, rank: int | None = None, generation: int | None = None, **kw: object
    ) -> JobDriver:
        generation = generation or self.attempt.generation
        ranks = range(self.task.num_nodes) if rank is None else [rank]
        index = self.task.index
        collected: list[actions.Action] = []
        for r in ranks:
            self.send(events.NodeReported(index, generation, r, phase, **kw))  # type: ignore[arg-type]
            collected.extend(self.last_actions)
        self.last_actions = collected
        return self

    def running(self) -> JobDriver:
        return self.tick().launched().report(NodePhase.BOOTED).report(NodePhase.READY).report(NodePhase.RUNNING)


def new_job(*, tasks: int = 1, nodes: int = 1, recovery: Recovery | None = None) -> JobDriver:
    recovery = recovery or Recovery()
    views = tuple(
        TaskView(i, (MachineRequirement(),), num_nodes=nodes, recovery=recovery, wake_at=1000.0 if i == 0 else None)
        for i in range(tasks)
    )
    return JobDriver(JobView(7, views))
