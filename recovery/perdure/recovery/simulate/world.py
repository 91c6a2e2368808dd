"""The daemon's decision loop in a recorded world: `step` gets the events that a controller would get, and its actions
happen at once. Only time is virtual.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from perdure.recovery import actions, events
from perdure.recovery.history import History, Sighting, StartUps, learn
from perdure.recovery.job import AttemptView, JobView, Recovery, TaskView, View
from perdure.recovery.market import FaultKind, MarketView, Refusal
from perdure.recovery.needs import Need
from perdure.recovery.offers import Market, Offer
from perdure.recovery.policies.cooldown import launch_refusal
from perdure.recovery.reasons import Reason
from perdure.recovery.simulate.cloud import TraceCloud
from perdure.recovery.simulate.scenario import Run, Scenario, Stay, machine_hours
from perdure.recovery.simulate.workload import Workload
from perdure.recovery.statuses import AttemptState, NodePhase
from perdure.recovery.step import step
from perdure.recovery.values import replace

_TASK = 0
# An agent calls long before a machine has restored its checkpoint.
_CALLS_AFTER = 0.3
_CALLS_BY_S = 300.0
_MEMORY_S = 4 * 3600.0

# The same of every job: what was found to fit them is kept, and found by comparing them.
_SPOT = (Need(),)
_ANYTHING = (*_SPOT, Need(use_spot=False))

_RUNNING, _DRAINING = AttemptState.RUNNING, AttemptState.DRAINING


class _Due(NamedTuple):
    at: float
    number: int
    what: str
    generation: int


@dataclass
class _Machines:
    """What the cloud knows of an attempt. `ended_at`: since when none of it is billed."""

    zone: int
    market: Market
    launched_at: float
    taken_at: float
    running_at: float | None = None
    stopped_at: float | None = None
    ended_at: float | None = None
    left: int = 0
    is_preempted: bool = False


class World:
    """One job in one window. `run` may be called once."""

    def __init__(self, cloud: TraceCloud, strategy: str, start_at: float, *, keep_notes: bool = False) -> None:
        self.cloud = cloud
        self.scenario: Scenario = cloud.scenario
        self.start_at = self.now = start_at
        self.job = _job(self.scenario, strategy, start_at)
        self.workload = Workload(self.scenario.work_s, self.scenario.checkpoint_every_s)
        self.machines: dict[int, _Machines] = {}
        self.refusals: tuple[Refusal, ...] = ()
        self.history = History(start_ups=self._starts_seen())
        self.wake_at: float | None = None
        self.finished_at: float | None = None
        self.data_region: str | None = None
        self.moved = 0.0
        self.refused = 0
        self.preemptions = 0
        self.keep_notes = keep_notes
        self.notes: list[str] = []
        self._due: list[_Due] = []
        self._numbers = count()
        self._inbox: deque[events.Event] = deque()
        self._span_end = self.scenario.span[1]

    def run(self) -> Run:
        """Until the job has ended, or the traces have."""
        if self.scenario.probe_every_s:
            self._learn_beforehand()
            self._schedule(self.start_at, "probe")
        self._tell(events.Tick())
        while not self.job.is_settled:
            at, what = self._next()
            if at >= self._span_end:
                self.now = self._span_end
                break
            self.now = max(self.now, at)
            if what is None:
                self._tell(self._word())
            else:
                self._happen(heappop(self._due))
        return self._outcome()

    def _next(self) -> tuple[float, str | None]:
        due = self._due[0] if self._due else None
        if self.wake_at is not None and (due is None or self.wake_at < due.at):
            return self.wake_at, None
        if due is None:
            return float("inf"), None
        return due.at, due.what

    def _outcome(self) -> Run:
        stays = tuple(
            Stay(m.zone, m.market, m.launched_at, _or(m.ended_at, self.now), m.running_at, m.stopped_at)
            for m in self.machines.values()
        )
        bills = (self.cloud.bill(s.zone, s.market, s.launched_at, s.ended_at) for s in stays)
        return Run(
            start_at=self.start_at,
            cost=sum(bills) + self.moved,
            finish_s=None if self.finished_at is None else self.finished_at - self.start_at,
            hours=machine_hours(stays, self.scenario.num_nodes),
            launches=len(stays),
            refused=self.refused,
            preemptions=self.preemptions,
            lost_s=self.workload.lost_s,
            stays=stays,
            notes=tuple(self.notes),
        )

    # --- deciding -----------------------------------------------------------------------------------------------------

    def _tell(self, event: events.Event) -> None:
        """`event`, and all that follows from it at this moment, to `step`."""
        self._inbox.append(event)
        while self._inbox:
            told = self._inbox.popleft()
            done = step(View(self.job, self._market()), told, self.now)
            self.job, self.wake_at = done.job, done.wake_at
            for action in done.actions:
                self._perform(action)
            self._follow()

    def _market(self) -> MarketView:
        return MarketView(self.cloud.offers(self.now), self.refusals, history=self.history)

    def _perform(self, action: actions.Action) -> None:
        match action:
            case actions.Note():
                if self.keep_notes:
                    at = self.now - self.start_at
                    self.notes.append(f"{at:.0f} {action.kind} {action.message} {action.data or ''}")
            case actions.Launch():
                self._launch(action)
            case actions.Terminate():
                self._end(action.generation)
                self._inbox.append(events.AttemptGone(_TASK, action.generation))
            case actions.Check():
                self._inbox.append(self._seen(action.generation))
            case actions.Refuse():
                forgotten = self.now - _MEMORY_S
                self.refusals = (*[r for r in self.refusals if r.until > forgotten], action.refusal)
            case actions.Learn():
                self.history = action.added_to(self.history)
            case actions.PrepareStorage():
                self._inbox.append(events.StorageReady(_TASK))

    def _follow(self) -> None:
        """Have the workload do what its attempt's state says."""
        for attempt in self.job.tasks[_TASK].attempts:
            machines = self.machines.get(attempt.generation)
            if machines is None:
                continue
            if attempt.state is _RUNNING and machines.running_at is None:
                self._begin_work(attempt, machines)
            elif attempt.state is _DRAINING and machines.stopped_at is None:
                self._save_and_stop(attempt, machines)

    # --- what happens -------------------------------------------------------------------------------------------------

    def _schedule(self, at: float, what: str, generation: int = 0) -> None:
        heappush(self._due, _Due(at, next(self._numbers), what, generation))

    def _happen(self, due: _Due) -> None:
        if due.what == "probe":
            self._probe(self.now)
            self._schedule(self.now + self.scenario.probe_every_s, "probe")
            return
        attempt = self.job.tasks[_TASK].attempt(due.generation)
        if attempt is None or self.machines[due.generation].ended_at is not None:
            return
        match due.what:
            case "called":
                self._report(attempt, NodePhase.SETUP)
            case "ready":
                self._report(attempt, NodePhase.READY)
            case "notice":
                at = self.machines[due.generation].taken_at
                self._count_preemption(self.machines[due.generation])
                self._note_progress(due.generation)
                for rank in range(self.scenario.num_nodes):
                    self._inbox.append(events.NoticeGiven(_TASK, due.generation, rank, at))
                self._tell(self._inbox.popleft())
            case "taken":
                self._take(due.generation)
            case "checkpoint":
                self._checkpoint(due.generation)
            case "done":
                self._finish(attempt)

    def _launch(self, action: actions.Launch) -> None:
        offer, generation, now = action.offer, action.generation, self.now
        zone = self.cloud.zone_of(offer)
        refusal = self._refusal(offer, zone)
        if refusal is not None:
            self.refused += 1
            self._inbox.append(events.LaunchRefused(_TASK, generation, refusal))
            return
        taken_at = self.cloud.taken_at(zone, offer.market, now)
        self.machines[generation] = _Machines(zone, offer.market, now, taken_at, left=action.num_nodes)
        if self.data_region not in (None, offer.region):
            self.moved += self.scenario.move_cost
        cold_start_s = self.cloud.cold_start_s(zone, offer.market, now)
        self._schedule(now + min(_CALLS_AFTER * cold_start_s, _CALLS_BY_S), "called", generation)
        if taken_at < float("inf"):
            self._schedule(taken_at, "taken", generation)
            if self.scenario.notice_s:
                self._schedule(max(now, taken_at - self.scenario.notice_s), "notice", generation)
        self._schedule(now + cold_start_s, "ready", generation)
        machines = tuple(events.Machine(rank, f"i-{generation}-{rank}") for rank in range(action.num_nodes))
        self._inbox.append(events.Launched(_TASK, generation, machines))

    def _refusal(self, offer: Offer, zone: int) -> Refusal | None:
        """Why the cloud would not sell now; None if it does. The quota is looked at first, as clouds do."""
        earlier, scenario = self.refusals, self.scenario
        if scenario.quota and self._held(offer) + scenario.num_nodes > scenario.quota:
            kind, reason = FaultKind.AVOID_REGION, Reason.QUOTA
            return launch_refusal(offer, self.now, kind=kind, reason=reason, earlier=earlier, message="quota used up")
        if not self.cloud.sells(zone, offer.market, self.now):
            message = "no capacity in the trace"
            return launch_refusal(offer, self.now, kind=FaultKind.AVOID_ZONE, earlier=earlier, message=message)
        return None

    def _held(self, offer: Offer) -> int:
        """Machines of the offer's market that the job has in its region."""
        zones = self.scenario.zones
        held = (m for m in self.machines.values() if m.ended_at is None and m.market is offer.market)
        return sum(m.left for m in held if zones[m.zone].region == offer.region)

    def _report(self, attempt: AttemptView, phase: NodePhase, **more: object) -> None:
        for node in attempt.nodes:
            if node.gone is None:
                self._inbox.append(events.NodeReported(_TASK, attempt.generation, node.rank, phase, **more))  # type: ignore[arg-type]
        if self._inbox:
            self._tell(self._inbox.popleft())

    def _begin_work(self, attempt: AttemptView, machines: _Machines) -> None:
        machines.running_at = self.now
        self.data_region = attempt.offer.region
        self._schedule(self.workload.begin(self.now), "done", attempt.generation)
        if self.workload.checkpoint_every_s:
            self._schedule(self.now + self.workload.checkpoint_every_s, "checkpoint", attempt.generation)

    def _save_and_stop(self, attempt: AttemptView, machines: _Machines) -> None:
        """SIGTERM: the workload saves, unless a part of it is gone already."""
        self._stop(machines, saves=all(n.gone is None for n in attempt.nodes))
        self._inbox.append(events.Saved(_TASK, attempt.generation, self.now))
        for node in attempt.nodes:
            if node.gone is None:
                ended = events.NodeReported(_TASK, attempt.generation, node.rank, NodePhase.ENDED, interrupted=True)
                self._inbox.append(ended)

    def _checkpoint(self, generation: int) -> None:
        machines = self.machines[generation]
        if machines.running_at is None or machines.stopped_at is not None:
            return
        self.workload.save(self.now)
        self._schedule(self.now + self.workload.checkpoint_every_s, "checkpoint", generation)
        self._tell(events.Saved(_TASK, generation, self.now))

    def _word(self) -> events.Event:
        """What is told when `step` wants to look: of a workload that saves all the time, that it just did."""
        current = self.job.tasks[_TASK].current
        if current is None or not self._saves_all_the_time(current.generation):
            return events.Tick()
        return events.Saved(_TASK, current.generation, self.now)

    def _note_progress(self, generation: int) -> None:
        """A workload that saves all the time says so before anything else is decided."""
        if self._saves_all_the_time(generation):
            self._tell(events.Saved(_TASK, generation, self.now))

    def _saves_all_the_time(self, generation: int) -> bool:
        machines = self.machines.get(generation)
        works = machines is not None and machines.running_at is not None and machines.stopped_at is None
        return works and not self.workload.checkpoint_every_s

    def _take(self, generation: int) -> None:
        machines = self.machines[generation]
        self._note_progress(generation)
        self._count_preemption(machines)
        machines.left = self.cloud.left(machines.zone, self.now)
        if machines.left == 0:
            self._stop(machines, saves=False)
            machines.ended_at = self.now
        self._tell(self._seen(generation))

    def _count_preemption(self, machines: _Machines) -> None:
        self.preemptions += not machines.is_preempted
        machines.is_preempted = True

    def _stop(self, machines: _Machines, *, saves: bool) -> None:
        """The workload ends on these machines, if it was there."""
        if machines.running_at is not None and machines.stopped_at is None:
            self.workload.stop(self.now, saves=saves)
        machines.stopped_at = self.now

    def _seen(self, generation: int) -> events.MachinesSeen:
        left = self.machines[generation].left
        fates = {rank: None if rank < left else Reason.PREEMPTED for rank in range(self.scenario.num_nodes)}
        return events.MachinesSeen(_TASK, generation, fates)

    def _finish(self, attempt: AttemptView) -> None:
        machines = self.machines[attempt.generation]
        if machines.stopped_at is not None:
            return
        machines.stopped_at = self.finished_at = self.now
        self._report(attempt, NodePhase.ENDED, exit_code=0)

    def _end(self, generation: int) -> None:
        machines = self.machines.get(generation)
        if machines is not None and machines.ended_at is None:
            machines.ended_at = self.now

    def _starts_seen(self) -> StartUps:
        """What other jobs' machines told of start-up times, on earlier ticks."""
        seen, zones = StartUps(), len(self.scenario.zones)
        for i in range(self.scenario.seen_starts):
            earlier = self.start_at - (1 + i // zones) * self.scenario.tick_s
            seen = seen.plus(self.cloud.cold_start_s(i % zones, Market.SPOT, earlier))
        return seen

    def _learn_beforehand(self) -> None:
        probes = int(self.scenario.warm_up_s // self.scenario.probe_every_s)
        for back in range(probes, 0, -1):
            at = self.start_at - back * self.scenario.probe_every_s
            if at >= self.scenario.span[0]:
                self._probe(at)

    def _probe(self, at: float) -> None:
        for offer in self.cloud.offers(at):
            available = self.cloud.sells(self.cloud.zone_of(offer), offer.market, at)
            self.history = learn(self.history, Sighting(offer.key, at, available))


def _job(scenario: Scenario, strategy: str, start_at: float) -> JobView:
    recovery = Recovery(strategy=strategy, work_s=float(scenario.work_s), patience=scenario.patience)
    if scenario.deadline_s is not None:
        recovery = replace(recovery, deadline_at=start_at + scenario.deadline_s)
    needs = _ANYTHING if scenario.use_on_demand else _SPOT
    return JobView(1, (TaskView(_TASK, needs, num_nodes=scenario.num_nodes, recovery=recovery, wake_at=start_at),))


def _or(time: float | None, otherwise: float) -> float:
    return otherwise if time is None else time
