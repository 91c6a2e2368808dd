"""A job told event by event: `a_story().running().tell(…)`."""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.recovery import actions, events
from perdure.recovery.job import AttemptView, JobView, Limits, Recovery, TaskView, View
from perdure.recovery.market import Market, MarketView, Offer, Refusal
from perdure.recovery.needs import Need
from perdure.recovery.statuses import NodePhase
from perdure.recovery.step import step

ZONES = {"east-a": 0.10, "east-b": 0.12, "west-a": 0.15}
OFFERS = tuple(
    Offer("local", zone.split("-")[0], zone, "small", Market.SPOT, price, 0.4, 2, 8) for zone, price in ZONES.items()
)
LIMITS = Limits(boot_timeout_s=100, silent_s=60, drain_s=30, recheck_s=5)


@dataclass
class Story:
    """A job, told event by event. `did` holds the actions of the last event."""

    job: JobView
    now: float = 1000.0
    refusals: tuple[Refusal, ...] = ()
    offers: tuple[Offer, ...] = OFFERS
    did: list[actions.Action] = field(default_factory=list)
    wake_at: float | None = None

    def tell(self, event: events.Event, after_s: float = 0.0) -> Story:
        self.now += after_s
        market = MarketView(self.offers, tuple(r for r in self.refusals if r.until > self.now))
        answer = step(View(self.job, market, LIMITS), event, self.now)
        self.job, self.did, self.wake_at = answer.job, list(answer.actions), answer.wake_at
        self.refusals += tuple(a.refusal for a in self.did if isinstance(a, actions.Refuse))
        return self

    def tick(self, after_s: float = 0.0) -> Story:
        return self.tell(events.Tick(), after_s)

    @property
    def task(self) -> TaskView:
        return self.job.current_task or self.job.tasks[-1]

    @property
    def attempt(self) -> AttemptView:
        return self.task.attempts[-1]

    def of(self, kind: type) -> list[actions.Action]:
        return [a for a in self.did if isinstance(a, kind)]

    def launched(self, generation: int | None = None) -> Story:
        generation = generation or self.attempt.generation
        machines = tuple(
            events.Machine(r, f"i-{generation}-{r}", f"127.0.0.{r + 1}") for r in range(self.task.num_nodes)
        )
        return self.tell(events.Launched(self.task.index, generation, machines))

    def report(self, phase: NodePhase, rank: int | None = None, generation: int | None = None, **kw: object) -> Story:
        generation = generation or self.attempt.generation
        ranks = range(self.task.num_nodes) if rank is None else [rank]
        index = self.task.index
        seen: list[actions.Action] = []
        for r in ranks:
            self.tell(events.NodeReported(index, generation, r, phase, **kw))  # type: ignore[arg-type]
            seen.extend(self.did)
        self.did = seen
        return self

    def running(self) -> Story:
        return self.tick().launched().report(NodePhase.BOOTED).report(NodePhase.READY).report(NodePhase.RUNNING)


def a_story(*, tasks: int = 1, nodes: int = 1, recovery: Recovery | None = None) -> Story:
    recovery = recovery or Recovery()
    views = tuple(
        TaskView(i, (Need(),), num_nodes=nodes, recovery=recovery, wake_at=1000.0 if i == 0 else None)
        for i in range(tasks)
    )
    return Story(JobView(7, views))
