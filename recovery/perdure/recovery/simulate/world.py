"""A job in a recorded market: `step` receives the events that a controller would receive, and its actions are performed
at once. Only time is virtual.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from perdure.recovery import actions, events
from perdure.recovery.frozen import replace
from perdure.recovery.job import AttemptView, JobView, Recovery, TaskView, View
from perdure.recovery.market.cooldown import unavailable_after_launch
from perdure.recovery.market.history import History, OfferObservation, StartupTimes, with_observation
from perdure.recovery.market.offers import Market, Offer
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import MarketView
from perdure.recovery.reasons import Reason
from perdure.recovery.simulate.cloud import TraceCloud
from perdure.recovery.simulate.scenario import MachineStay, Run, Scenario, machine_hours
from perdure.recovery.simulate.workload import Workload
from perdure.recovery.statuses import AttemptState, NodePhase
from perdure.recovery.step import step

_TASK = 0
# An agent connects after this share of the cold start, and after at most this long: well before the workload has
# restored its checkpoint.
_CONNECTS_AFTER = 0.3
_MAX_CONNECT_S = 300.0
_REMEMBERED_S = 4 * 3600.0

# Shared by all jobs: the offers that fit are cached by these values.
_SPOT = (MachineRequirement(),)
_ANY_MARKET = (*_SPOT, MachineRequirement(use_spot=False))

_RUNNING, _DRAINING = AttemptState.RUNNING, AttemptState.DRAINING


class _Timer(NamedTuple):
    at: float
    number: int  # keeps timers of one moment in the order in which they were set
    what: str
    generation: int


@dataclass
class _Machines:
    """The machines of an attempt, as they exist in the cloud."""

    zone: int
    market: Market
    launched_at: float
    preempted_at: float
    running_at: float | None = None
    stopped_at: float | None = None
    ended_at: float | None = None  # since when none of them is billed
    surviving: int = 0
    is_preempted: bool = False


class World:
    """One job in one window. `run` may be called once."""

    def __init__(self, cloud: TraceCloud, strategy: str, start_at: float, *, keep_timeline: bool = False) -> None:
        self.cloud = cloud
        self.scenario: Scenario = cloud.scenario
        self.start_at = self.now = start_at
        self.job = _job(self.scenario, strategy, start_at)
        self.workload = Workload(self.scenario.work_s, self.scenario.checkpoint_every_s)
        self.machines: dict[int, _Machines] = {}
        self.unavailable: tuple[UnavailableOffer, ...] = ()
        self.history = History(startup_times=self._prior_startup_times())
        self.wake_at: float | None = None
        self.finished_at: float | None = None
        self.data_region: str | None = None
        self.transfer_cost = 0.0
        self.refused = 0
        self.preemptions = 0
        self.keep_timeline = keep_timeline
        self.timeline: list[str] = []
        self._timers: list[_Timer] = []
        self._numbers = count()
        self._inbox: deque[events.Event] = deque()
        self._span_end = self.scenario.span[1]

    def run(self) -> Run:
        """Run until the job is finalized, or the traces end."""
        if self.scenario.probe_every_s:
            self._warm_up()
            self._schedule(self.start_at, "probe")
        self._decide(events.Tick())
        while not self.job.is_finalized:
            at, what = self._next()
            if at >= self._span_end:
                self.now = self._span_end
                break
            self.now = max(self.now, at)
            if what is None:
                self._decide(self._wake_event())
            else:
                self._handle(heappop(self._timers))
        return self._outcome()

    def _next(self) -> tuple[float, str | None]:
        due = self._timers[0] if self._timers else None
        if self.wake_at is not None and (due is None or self.wake_at < due.at):
            return self.wake_at, None
        if due is None:
            return float("inf"), None
        return due.at, due.what

    def _outcome(self) -> Run:
        stays = tuple(
            MachineStay(m.zone, m.market, m.launched_at, _value_or(m.ended_at, self.now), m.running_at, m.stopped_at)
            for m in self.machines.values()
        )
        bills = (self.cloud.bill(s.zone, s.market, s.launched_at, s.ended_at) for s in stays)
        return Run(
            start_at=self.start_at,
            cost=sum(bills) + self.transfer_cost,
            finish_s=None if self.finished_at is None else self.finished_at - self.start_at,
            hours=machine_hours(stays, self.scenario.num_nodes),
            launches=len(stays),
            refused=self.refused,
            preemptions=self.preemptions,
            lost_s=self.workload.lost_s,
            stays=stays,
            timeline=tuple(self.timeline),
        )

    # --- deciding -----------------------------------------------------------------------------------------------------

    def _decide(self, event: events.Event) -> None:
        """Pass `event`, and the events that follow from it at this moment, to `step`; perform the actions."""
        self._inbox.append(event)
        while self._inbox:
            result = step(View(self.job, self._market()), self._inbox.popleft(), self.now)
            self.job, self.wake_at = result.job, result.wake_at
            for action in result.actions:
                self._perform(action)
            self._update_workloads()

    def _market(self) -> MarketView:
        return MarketView(self.cloud.offers(self.now), self.unavailable, history=self.history)

    def _perform(self, action: actions.Action) -> None:
        match action:
            case actions.TimelineEntry():
                if self.keep_timeline:
                    at = self.now - self.start_at
                    self.timeline.append(f"{at:.0f} {action.kind} {action.message} {action.data or ''}")
            case actions.Launch():
                self._launch(action)
            case actions.Terminate():
                self._terminate(action.generation)
                self._inbox.append(events.AttemptGone(_TASK, action.generation))
            case actions.DescribeMachines():
                self._inbox.append(self._describe(action.generation))
            case actions.AvoidOffer():
                expired_before = self.now - _REMEMBERED_S
                remembered = [u for u in self.unavailable if u.until > expired_before]
                self.unavailable = (*remembered, action.unavailable)
            case actions.RecordObservation():
                self.history = action.apply_to(self.history)
            case actions.PrepareStorage():
                self._inbox.append(events.StorageReady(_TASK))

    def _update_workloads(self) -> None:
        """Start and stop workloads as the states of their attempts require."""
        for attempt in self.job.tasks[_TASK].attempts:
            machines = self.machines.get(attempt.generation)
            if machines is None:
                continue
            if attempt.state is _RUNNING and machines.running_at is None:
                self._begin_work(attempt, machines)
            elif attempt.state is _DRAINING and machines.stopped_at is None:
                self._drain(attempt, machines)

    # --- events -------------------------------------------------------------------------------------------------------

    def _schedule(self, at: float, what: str, generation: int = 0) -> None:
        heappush(self._timers, _Timer(at, next(self._numbers), what, generation))

    def _handle(self, due: _Timer) -> None:
        if due.what == "probe":
            self._probe(self.now)
            self._schedule(self.now + self.scenario.probe_every_s, "probe")
            return
        attempt = self.job.tasks[_TASK].attempt(due.generation)
        if attempt is None or self.machines[due.generation].ended_at is not None:
            return
        match due.what:
            case "connected":
                self._report(attempt, NodePhase.SETUP)
            case "ready":
                self._report(attempt, NodePhase.READY)
            case "notice":
                at = self.machines[due.generation].preempted_at
                self._count_preemption(self.machines[due.generation])
                self._report_progress(due.generation)
                for rank in range(self.scenario.num_nodes):
                    self._inbox.append(events.PreemptionNotice(_TASK, due.generation, rank, at))
                self._decide(self._inbox.popleft())
            case "preempted":
                self._preempt(due.generation)
            case "checkpoint":
                self._checkpoint(due.generation)
            case "done":
                self._complete(attempt)

    def _launch(self, action: actions.Launch) -> None:
        offer, generation, now = action.offer, action.generation, self.now
        zone = self.cloud.zone_of(offer)
        unavailable = self._why_refused(offer, zone)
        if unavailable is not None:
            self.refused += 1
            self._inbox.append(events.LaunchRefused(_TASK, generation, unavailable))
            return
        preempted_at = self.cloud.preempted_at(zone, offer.market, now)
        self.machines[generation] = _Machines(zone, offer.market, now, preempted_at, surviving=action.num_nodes)
        if self.data_region not in (None, offer.region):
            self.transfer_cost += self.scenario.move_cost
        cold_start_s = self.cloud.cold_start_s(zone, offer.market, now)
        self._schedule(now + min(_CONNECTS_AFTER * cold_start_s, _MAX_CONNECT_S), "connected", generation)
        if preempted_at < float("inf"):
            self._schedule(preempted_at, "preempted", generation)
            if self.scenario.notice_s:
                self._schedule(max(now, preempted_at - self.scenario.notice_s), "notice", generation)
        self._schedule(now + cold_start_s, "ready", generation)
        machines = tuple(events.Machine(rank, f"i-{generation}-{rank}") for rank in range(action.num_nodes))
        self._inbox.append(events.Launched(_TASK, generation, machines))

    def _why_refused(self, offer: Offer, zone: int) -> UnavailableOffer | None:
        """Why the cloud refuses a launch now; None if it does not. It checks the quota first, as real clouds do."""
        earlier, scenario = self.unavailable, self.scenario
        if scenario.quota and self._held(offer) + scenario.num_nodes > scenario.quota:
            kind, reason = FaultKind.AVOID_REGION, Reason.QUOTA
            return unavailable_after_launch(
                offer, self.now, kind=kind, reason=reason, earlier=earlier, message="the quota is used up"
            )
        if not self.cloud.can_launch(zone, offer.market, self.now):
            message = "the zone has no capacity"
            return unavailable_after_launch(
                offer, self.now, kind=FaultKind.AVOID_ZONE, earlier=earlier, message=message
            )
        return None

    def _held(self, offer: Offer) -> int:
        """How many machines of the offer's market the job has in its region."""
        zones = self.scenario.zones
        held = (m for m in self.machines.values() if m.ended_at is None and m.market is offer.market)
        return sum(m.surviving for m in held if zones[m.zone].region == offer.region)

    def _report(self, attempt: AttemptView, phase: NodePhase, **more: object) -> None:
        for node in attempt.nodes:
            if node.gone_reason is None:
                self._inbox.append(events.NodeReported(_TASK, attempt.generation, node.rank, phase, **more))  # type: ignore[arg-type]
        if self._inbox:
            self._decide(self._inbox.popleft())

    def _begin_work(self, attempt: AttemptView, machines: _Machines) -> None:
        machines.running_at = self.now
        self.data_region = attempt.offer.region
        self._schedule(self.workload.begin(self.now), "done", attempt.generation)
        if self.workload.checkpoint_every_s:
            self._schedule(self.now + self.workload.checkpoint_every_s, "checkpoint", attempt.generation)

    def _drain(self, attempt: AttemptView, machines: _Machines) -> None:
        """SIGTERM: the workload saves, unless one of its machines is gone. Without a save, nothing is reported."""
        saves = all(n.gone_reason is None for n in attempt.nodes)
        self._stop(machines, saves=saves)
        if saves or not self.workload.checkpoint_every_s:
            self._inbox.append(self._saved(attempt.generation))
        for node in attempt.nodes:
            if node.gone_reason is None:
                ended = events.NodeReported(_TASK, attempt.generation, node.rank, NodePhase.ENDED, interrupted=True)
                self._inbox.append(ended)

    def _checkpoint(self, generation: int) -> None:
        machines = self.machines[generation]
        if machines.running_at is None or machines.stopped_at is not None:
            return
        self.workload.save(self.now)
        self._schedule(self.now + self.workload.checkpoint_every_s, "checkpoint", generation)
        self._decide(self._saved(generation))

    def _saved(self, generation: int) -> events.CheckpointDurable:
        """All work done until now is durable. The step is that of a workload whose steps take equally long."""
        steps = self.scenario.steps
        done = min(1.0, self.workload.done_s(self.now) / self.scenario.work_s)
        return (
            events.CheckpointDurable(_TASK, generation, self.now, int(steps * done), steps)
            if steps
            else (events.CheckpointDurable(_TASK, generation, self.now))
        )

    def _wake_event(self) -> events.Event:
        """The event at the job's wake time: from a workload that saves continuously, that it just saved."""
        current = self.job.tasks[_TASK].current
        if current is None or not self._saves_continuously(current.generation):
            return events.Tick()
        return self._saved(current.generation)

    def _report_progress(self, generation: int) -> None:
        """A workload that saves continuously reports so before anything else is decided."""
        if self._saves_continuously(generation):
            self._decide(self._saved(generation))

    def _saves_continuously(self, generation: int) -> bool:
        machines = self.machines.get(generation)
        works = machines is not None and machines.running_at is not None and machines.stopped_at is None
        return works and not self.workload.checkpoint_every_s

    def _preempt(self, generation: int) -> None:
        machines = self.machines[generation]
        self._report_progress(generation)
        self._count_preemption(machines)
        machines.surviving = self.cloud.surviving_nodes(machines.zone, self.now)
        if machines.surviving == 0:
            self._stop(machines, saves=False)
            machines.ended_at = self.now
        self._decide(self._describe(generation))

    def _count_preemption(self, machines: _Machines) -> None:
        self.preemptions += not machines.is_preempted
        machines.is_preempted = True

    def _stop(self, machines: _Machines, *, saves: bool) -> None:
        """Stop the workload, if it runs on these machines."""
        if machines.running_at is not None and machines.stopped_at is None:
            self.workload.stop(self.now, saves=saves)
        machines.stopped_at = self.now

    def _describe(self, generation: int) -> events.MachinesDescribed:
        surviving = self.machines[generation].surviving
        gone_reasons = {rank: None if rank < surviving else Reason.PREEMPTED for rank in range(self.scenario.num_nodes)}
        return events.MachinesDescribed(_TASK, generation, gone_reasons)

    def _complete(self, attempt: AttemptView) -> None:
        machines = self.machines[attempt.generation]
        if machines.stopped_at is not None:
            return
        machines.stopped_at = self.finished_at = self.now
        self._report(attempt, NodePhase.ENDED, exit_code=0)

    def _terminate(self, generation: int) -> None:
        machines = self.machines.get(generation)
        if machines is not None and machines.ended_at is None:
            machines.ended_at = self.now

    def _prior_startup_times(self) -> StartupTimes:
        """Start-up times that other jobs' machines had on earlier ticks."""
        times, zones = StartupTimes(), len(self.scenario.zones)
        for i in range(self.scenario.prior_starts):
            earlier = self.start_at - (1 + i // zones) * self.scenario.tick_s
            times = times.plus(self.cloud.cold_start_s(i % zones, Market.SPOT, earlier))
        return times

    def _warm_up(self) -> None:
        probes = int(self.scenario.warm_up_s // self.scenario.probe_every_s)
        for back in range(probes, 0, -1):
            at = self.start_at - back * self.scenario.probe_every_s
            if at >= self.scenario.span[0]:
                self._probe(at)

    def _probe(self, at: float) -> None:
        for offer in self.cloud.offers(at):
            available = self.cloud.can_launch(self.cloud.zone_of(offer), offer.market, at)
            self.history = with_observation(self.history, OfferObservation(offer.key, at, available))


def _job(scenario: Scenario, strategy: str, start_at: float) -> JobView:
    stated_s = scenario.work_s if scenario.stated_work_s is None else scenario.stated_work_s
    recovery = Recovery(
        strategy=strategy,
        work_s=float(stated_s),
        on_time=scenario.on_time,
        patience=scenario.patience,
        move_cost=scenario.move_cost,
    )
    if scenario.deadline_s is not None:
        recovery = replace(recovery, deadline_at=start_at + scenario.deadline_s)
    requirements = _ANY_MARKET if scenario.use_on_demand else _SPOT
    return JobView(
        1, (TaskView(_TASK, requirements, num_nodes=scenario.num_nodes, recovery=recovery, wake_at=start_at),)
    )


def _value_or(time: float | None, otherwise: float) -> float:
    return otherwise if time is None else time
