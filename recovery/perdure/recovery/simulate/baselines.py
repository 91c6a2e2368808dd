"""Published policies to compare with, in the same world and under the same cost model.

They follow their authors' description: once per tick they observe for free which zones have capacity, and they stop
before they launch anew. `greedy` and `uniform-progress`: Wu et al., "Can't Be Late" (NSDI '24); among the zones with
capacity they use the cheapest. Ticks at which nothing can change are skipped, unless `skips` is False; the result is
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from perdure.recovery.market.offers import Market
from perdure.recovery.simulate.cloud import TraceCloud
from perdure.recovery.simulate.scenario import MachineStay, Run, Scenario, machine_hours

Place = tuple[int, Market]


def on_demand(cloud: TraceCloud, start_at: float) -> Run:
    """On-demand from beginning to end."""
    return _Replay(cloud, start_at).until_done(lambda replay: _cheapest_on_demand(replay.scenario), lambda _: inf)


def greedy(cloud: TraceCloud, start_at: float, *, skips: bool = True) -> Run:
    """Spot whenever it is available, else nothing, until only on-demand can still meet the deadline."""
    return _Replay(cloud, start_at).until_done(_greedy, _greedy_until, skips=skips)


def uniform_progress(cloud: TraceCloud, start_at: float, *, skips: bool = True) -> Run:
    """Spot whenever available; on-demand while behind a steady pace, and back once ahead of it by two start-ups."""
    return _Replay(cloud, start_at).until_done(_uniform_progress, _uniform_progress_until, skips=skips)


def lifetime_oracle(cloud: TraceCloud, start_at: float, *, skips: bool = True) -> Run:
    """The zone with capacity that costs least per second of work, knowing how long each will last."""
    return _Replay(cloud, start_at).until_done(_cheapest_per_work, _preempted_at, skips=skips)


@dataclass
class _Replay:
    """The job under a baseline policy, from tick to tick."""

    cloud: TraceCloud
    start_at: float
    now: float = 0.0
    durable_s: float = 0.0
    lost_s: float = 0.0
    transfer_cost: float = 0.0
    in_safety_net: bool = False  # only on-demand from now on, to meet the deadline
    place: Place | None = None
    launched_at: float = 0.0
    works_from: float = 0.0
    resumed_s: float = 0.0
    preemptions: int = 0
    data_region: str | None = None
    finished_at: float | None = None
    stays: list[MachineStay] = field(default_factory=list)

    @property
    def scenario(self) -> Scenario:
        return self.cloud.scenario

    def done_s(self, at: float) -> float:
        """Work done, in seconds of running."""
        if self.place is None:
            return self.durable_s
        return self.resumed_s + max(0.0, at - self.works_from)

    @property
    def left_s(self) -> float:
        return self.scenario.work_s - self.done_s(self.now)

    @property
    def elapsed_s(self) -> float:
        return self.now - self.start_at

    @property
    def time_left_s(self) -> float:
        assert self.scenario.deadline_s is not None
        return self.scenario.deadline_s - self.elapsed_s

    def until_done(
        self, decide: Callable[[_Replay], Place | None], same_until: Callable[[_Replay], float], *, skips: bool = True
    ) -> Run:
        """Call `decide` at every tick; if `skips`, not before `same_until`, since the decision would be the same."""
        tick_s, span_end = self.scenario.tick_s, self.scenario.span[1]
        self.now = self.start_at
        while self.now < span_end and self.finished_at is None:
            self._handle_loss()
            self._switch_to(decide(self))
            until = min(same_until(self), span_end + tick_s) if skips else self.now
            ticks = max(1, (until - self.now) // tick_s)
            self._work_until(min(self.now + ticks * tick_s, span_end))
        if self.place is not None:
            self._leave(self.now)
        bills = (self.cloud.bill(s.zone, s.market, s.launched_at, s.ended_at) for s in self.stays)
        return Run(
            start_at=self.start_at,
            cost=sum(bills) + self.transfer_cost,
            finish_s=None if self.finished_at is None else self.finished_at - self.start_at,
            hours=machine_hours(self.stays, self.scenario.num_nodes),
            launches=len(self.stays),
            preemptions=self.preemptions,
            lost_s=self.lost_s,
            stays=tuple(self.stays),
        )

    def market_until(self) -> float:
        """When a change of any zone's capacity is next observed."""
        zones, nodes, notice_s = self.scenario.zones, self.scenario.num_nodes, self.scenario.notice_s
        changes = min(z.next_change(nodes, self.now) for z in zones)
        if notice_s:
            changes = min(changes, *(z.next_change(nodes, self.now + notice_s) - notice_s for z in zones))
        return changes

    def cheapest_spot(self) -> Place | None:
        zones = self.scenario.zones
        available = [i for i in range(len(zones)) if self.cloud.can_launch(i, Market.SPOT, self.now)]
        return (min(available, key=lambda i: zones[i].price(self.now)), Market.SPOT) if available else None

    def _handle_loss(self) -> None:
        if self.place is not None and not self.cloud.has_capacity(*self.place, self.now):
            self.preemptions += 1
            every_s, notice_s = self.scenario.checkpoint_every_s, self.scenario.notice_s
            done_s = max(self.resumed_s, self.done_s(self.now) - notice_s)
            if every_s and not notice_s:
                saved_s = self.resumed_s + (done_s - self.resumed_s) // every_s * every_s
                self.lost_s += done_s - saved_s
                done_s = saved_s
            self._end_stay(self.now, self.now - notice_s)
            self.durable_s = done_s

    def _switch_to(self, place: Place | None) -> None:
        if place == self.place:
            return
        if self.place is not None:
            self._leave(self.now)
        if place is not None:
            region = self.scenario.zones[place[0]].region
            if self.data_region not in (None, region):
                self.transfer_cost += self.scenario.move_cost
            self.place, self.launched_at, self.resumed_s = place, self.now, self.durable_s
            self.works_from = self.now + self.cloud.cold_start_s(*place, self.now)

    def _leave(self, at: float) -> None:
        self.durable_s = self.done_s(at)
        self._end_stay(at, at)

    def _end_stay(self, ended_at: float, stopped_at: float) -> None:
        assert self.place is not None
        zone, market = self.place
        worked = ended_at > self.works_from
        if worked:
            self.data_region = self.scenario.zones[zone].region
        running_at = self.works_from if worked else None
        self.stays.append(
            MachineStay(zone, market, self.launched_at, ended_at, running_at, stopped_at if worked else None)
        )
        self.place = None

    def _work_until(self, until: float) -> None:
        if self.place is not None and self.done_s(until) >= self.scenario.work_s:
            until = self.works_from + self.scenario.work_s - self.resumed_s
            self.finished_at = until
        self.now = until


# --- decisions --------------------------------------------------------------------------------------------------------


def _cheapest_on_demand(scenario: Scenario) -> Place:
    zones = scenario.zones
    return min(range(len(zones)), key=lambda i: zones[i].on_demand_price), Market.ON_DEMAND


def _greedy(replay: _Replay) -> Place | None:
    if _needs_safety_net(replay):
        return _cheapest_on_demand(replay.scenario)
    return replay.place or replay.cheapest_spot()


def _uniform_progress(replay: _Replay) -> Place | None:
    scenario = replay.scenario
    if _needs_safety_net(replay):
        return _cheapest_on_demand(scenario)
    if scenario.deadline_s is None:
        return replay.place or replay.cheapest_spot()
    pace = scenario.work_s / scenario.deadline_s
    if replay.place is None:
        behind = replay.done_s(replay.now) < replay.elapsed_s * pace
        return replay.cheapest_spot() or (_cheapest_on_demand(scenario) if behind else None)
    if replay.place[1] is Market.ON_DEMAND:
        ahead = replay.done_s(replay.now) >= (replay.elapsed_s + 2 * scenario.cold_start_s) * pace
        return (replay.cheapest_spot() if ahead else None) or replay.place
    return replay.place


def _needs_safety_net(replay: _Replay) -> bool:
    """The safety net: on-demand for good, from two worst-case start-ups before it would be too late.

    The authors check this only while the job has no machine. If a loss can also cost work, that would be too late: then
    the work since the last checkpoint counts as not done, and a spot machine is left in time.
    """
    scenario = replay.scenario
    if replay.in_safety_net or scenario.deadline_s is None:
        return replay.in_safety_net
    worst_s = scenario.worst_cold_start_s
    if replay.place is None:
        replay.in_safety_net = replay.time_left_s < replay.left_s + max(2 * worst_s, worst_s + scenario.tick_s)
    elif replay.place[1] is Market.SPOT and _net_watches_spot(scenario):
        at_stake_s = min(replay.done_s(replay.now) - replay.resumed_s, scenario.checkpoint_every_s)
        replay.in_safety_net = replay.time_left_s < replay.left_s + at_stake_s + worst_s + 2 * scenario.tick_s
    return replay.in_safety_net


def _net_watches_spot(scenario: Scenario) -> bool:
    return bool(scenario.checkpoint_every_s or scenario.cold_start_sigma)


# --- until when a decision stays the same, at least; with a tick to spare before a threshold --------------------------


def _preempted_at(replay: _Replay) -> float:
    return replay.now if replay.place is None else replay.cloud.preempted_at(*replay.place, replay.now)


def _greedy_until(replay: _Replay) -> float:
    if replay.place is None:
        return min(replay.market_until(), _safety_net_at(replay))
    if replay.place[1] is Market.SPOT and not replay.in_safety_net and _net_watches_spot(replay.scenario):
        return replay.now
    return _preempted_at(replay)


def _uniform_progress_until(replay: _Replay) -> float:
    scenario = replay.scenario
    if (
        scenario.deadline_s is None
        or replay.in_safety_net
        or (replay.place is not None and replay.place[1] is Market.SPOT)
    ):
        return _greedy_until(replay)
    pace, spare_s = scenario.work_s / scenario.deadline_s, scenario.tick_s
    if replay.place is None:
        return min(_greedy_until(replay), replay.start_at + replay.durable_s / pace - spare_s)
    # On on-demand: once the work done has overtaken the pace, it stays ahead.
    begun_s, lead_s = replay.works_from - replay.start_at, 2 * scenario.cold_start_s
    ahead_s = (begun_s - replay.resumed_s + lead_s * pace) / (1 - pace) - spare_s
    return replay.market_until() if ahead_s <= replay.elapsed_s - 2 * spare_s else replay.start_at + ahead_s


def _safety_net_at(replay: _Replay) -> float:
    """When a job without a machine falls into the safety net."""
    deadline_s, worst_s, tick_s = replay.scenario.deadline_s, replay.scenario.worst_cold_start_s, replay.scenario.tick_s
    if deadline_s is None:
        return inf
    return replay.start_at + deadline_s - replay.left_s - max(2 * worst_s, worst_s + tick_s) - tick_s


def _cheapest_per_work(replay: _Replay) -> Place | None:
    if replay.place is not None:
        return replay.place
    scenario, cloud = replay.scenario, replay.cloud
    candidates: list[tuple[float, Place]] = []
    for zone, trace in enumerate(scenario.zones):
        place = zone, Market.SPOT
        if not cloud.can_launch(*place, replay.now):
            continue
        start_s = cloud.cold_start_s(*place, replay.now)
        life_s = min(cloud.preempted_at(*place, replay.now) - replay.now, start_s + replay.left_s)
        if life_s > start_s:
            candidates.append((trace.price(replay.now) * life_s / (life_s - start_s), place))
    return min(candidates)[1] if candidates else None
