"""Published policies to compare with, in the same world and under the same cost model.

They are written down as their authors have them: once per tick they see, for nothing, which zones have room; they stop
before they launch anew. `greedy` and `uniform-progress`: Wu et al., "Can't Be Late" (NSDI '24), where a zone is chosen
the cheapest one with room is. Ticks at which nothing can change are skipped; without `skips` none is, and the same
comes out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from perdure.recovery.offers import Market
from perdure.recovery.simulate.cloud import TraceCloud
from perdure.recovery.simulate.scenario import Run, Scenario, Stay, machine_hours

Place = tuple[int, Market]


def on_demand(cloud: TraceCloud, start_at: float) -> Run:
    """On-demand from the begin to the end."""
    return _Walk(cloud, start_at).until_done(lambda walk: _cheapest_on_demand(walk.scenario), lambda _: inf)


def greedy(cloud: TraceCloud, start_at: float, *, skips: bool = True) -> Run:
    """Spot whenever there is any, else nothing, until only on-demand can still make the deadline."""
    return _Walk(cloud, start_at).until_done(_greedy, _greedy_until, skips=skips)


def uniform_progress(cloud: TraceCloud, start_at: float, *, skips: bool = True) -> Run:
    """Spot whenever there is any; on-demand while behind a steady pace; back only once ahead by two start-ups."""
    return _Walk(cloud, start_at).until_done(_uniform_progress, _uniform_progress_until, skips=skips)


def lifetime_oracle(cloud: TraceCloud, start_at: float, *, skips: bool = True) -> Run:
    """Of the zones with room, the one that costs least per second of work, told how long each will last."""
    return _Walk(cloud, start_at).until_done(_longest_for_the_money, _held_until, skips=skips)


@dataclass
class _Walk:
    """The job, from tick to tick."""

    cloud: TraceCloud
    start_at: float
    now: float = 0.0
    durable_s: float = 0.0
    lost_s: float = 0.0
    moved: float = 0.0
    at_last: bool = False  # the deadline leaves nothing but on-demand from now on
    place: Place | None = None
    launched_at: float = 0.0
    works_from: float = 0.0
    resumed_s: float = 0.0
    preemptions: int = 0
    data_region: str | None = None
    finished_at: float | None = None
    stays: list[Stay] = field(default_factory=list)

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
        self, decide: Callable[[_Walk], Place | None], same_until: Callable[[_Walk], float], *, skips: bool = True
    ) -> Run:
        """`decide` at every tick; if `skips`, not at those before `same_until`: it would say what it has just said."""
        tick_s, span_end = self.scenario.tick_s, self.scenario.span[1]
        self.now = self.start_at
        while self.now < span_end and self.finished_at is None:
            self._notice_loss()
            self._go(decide(self))
            until = min(same_until(self), span_end + tick_s) if skips else self.now
            ticks = max(1, (until - self.now) // tick_s)
            self._work_until(min(self.now + ticks * tick_s, span_end))
        if self.place is not None:
            self._leave(self.now)
        bills = (self.cloud.bill(s.zone, s.market, s.launched_at, s.ended_at) for s in self.stays)
        return Run(
            start_at=self.start_at,
            cost=sum(bills) + self.moved,
            finish_s=None if self.finished_at is None else self.finished_at - self.start_at,
            hours=machine_hours(self.stays, self.scenario.num_nodes),
            launches=len(self.stays),
            preemptions=self.preemptions,
            lost_s=self.lost_s,
            stays=tuple(self.stays),
        )

    def market_until(self) -> float:
        """When any zone's room is next seen to change."""
        zones, nodes, notice_s = self.scenario.zones, self.scenario.num_nodes, self.scenario.notice_s
        changes = min(z.changes_at(nodes, self.now) for z in zones)
        if notice_s:
            changes = min(changes, *(z.changes_at(nodes, self.now + notice_s) - notice_s for z in zones))
        return changes

    def cheapest_spot(self) -> Place | None:
        zones = self.scenario.zones
        room = [i for i in range(len(zones)) if self.cloud.sells(i, Market.SPOT, self.now)]
        return (min(room, key=lambda i: zones[i].price(self.now)), Market.SPOT) if room else None

    def _notice_loss(self) -> None:
        if self.place is not None and not self.cloud.has(*self.place, self.now):
            self.preemptions += 1
            every_s, notice_s = self.scenario.checkpoint_every_s, self.scenario.notice_s
            done_s = max(self.resumed_s, self.done_s(self.now) - notice_s)
            if every_s and not notice_s:
                saved_s = self.resumed_s + (done_s - self.resumed_s) // every_s * every_s
                self.lost_s += done_s - saved_s
                done_s = saved_s
            self._end_stay(self.now, self.now - notice_s)
            self.durable_s = done_s

    def _go(self, place: Place | None) -> None:
        if place == self.place:
            return
        if self.place is not None:
            self._leave(self.now)
        if place is not None:
            region = self.scenario.zones[place[0]].region
            if self.data_region not in (None, region):
                self.moved += self.scenario.move_cost
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
        self.stays.append(Stay(zone, market, self.launched_at, ended_at, running_at, stopped_at if worked else None))
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


def _greedy(walk: _Walk) -> Place | None:
    if _only_on_demand_left(walk):
        return _cheapest_on_demand(walk.scenario)
    return walk.place or walk.cheapest_spot()


def _uniform_progress(walk: _Walk) -> Place | None:
    scenario = walk.scenario
    if _only_on_demand_left(walk):
        return _cheapest_on_demand(scenario)
    if scenario.deadline_s is None:
        return walk.place or walk.cheapest_spot()
    pace = scenario.work_s / scenario.deadline_s
    if walk.place is None:
        behind = walk.done_s(walk.now) < walk.elapsed_s * pace
        return walk.cheapest_spot() or (_cheapest_on_demand(scenario) if behind else None)
    if walk.place[1] is Market.ON_DEMAND:
        ahead = walk.done_s(walk.now) >= (walk.elapsed_s + 2 * scenario.cold_start_s) * pace
        return (walk.cheapest_spot() if ahead else None) or walk.place
    return walk.place


def _only_on_demand_left(walk: _Walk) -> bool:
    """The safety net: two start-ups before it would be too late, counted at their longest. Once in it, for good.

    The authors look only while the job is nowhere. Where a loss can also throw work away, that would be too late: then
    the work since the last checkpoint counts as not done, and a machine is left in time.
    """
    scenario = walk.scenario
    if walk.at_last or scenario.deadline_s is None:
        return walk.at_last
    worst_s = scenario.worst_cold_start_s
    if walk.place is None:
        walk.at_last = walk.time_left_s < walk.left_s + max(2 * worst_s, worst_s + scenario.tick_s)
    elif walk.place[1] is Market.SPOT and _net_looks_at_spot(scenario):
        at_stake_s = min(walk.done_s(walk.now) - walk.resumed_s, scenario.checkpoint_every_s)
        walk.at_last = walk.time_left_s < walk.left_s + at_stake_s + worst_s + 2 * scenario.tick_s
    return walk.at_last


def _net_looks_at_spot(scenario: Scenario) -> bool:
    return bool(scenario.checkpoint_every_s or scenario.cold_start_sigma)


# --- and how long they stay the same: at the least, with a tick to spare where a threshold is crossed -----------------


def _held_until(walk: _Walk) -> float:
    return walk.now if walk.place is None else walk.cloud.taken_at(*walk.place, walk.now)


def _greedy_until(walk: _Walk) -> float:
    if walk.place is None:
        return min(walk.market_until(), _net_from(walk))
    if walk.place[1] is Market.SPOT and not walk.at_last and _net_looks_at_spot(walk.scenario):
        return walk.now
    return _held_until(walk)


def _uniform_progress_until(walk: _Walk) -> float:
    scenario = walk.scenario
    if scenario.deadline_s is None or walk.at_last or (walk.place is not None and walk.place[1] is Market.SPOT):
        return _greedy_until(walk)
    pace, spare_s = scenario.work_s / scenario.deadline_s, scenario.tick_s
    if walk.place is None:
        return min(_greedy_until(walk), walk.start_at + walk.durable_s / pace - spare_s)
    # On on-demand: the work done overtakes the pace from behind, and is then ahead of it as long as this goes on.
    begun_s, lead_s = walk.works_from - walk.start_at, 2 * scenario.cold_start_s
    ahead_s = (begun_s - walk.resumed_s + lead_s * pace) / (1 - pace) - spare_s
    return walk.market_until() if ahead_s <= walk.elapsed_s - 2 * spare_s else walk.start_at + ahead_s


def _net_from(walk: _Walk) -> float:
    """When the safety net of a job that is nowhere catches it."""
    deadline_s, worst_s, tick_s = walk.scenario.deadline_s, walk.scenario.worst_cold_start_s, walk.scenario.tick_s
    if deadline_s is None:
        return inf
    return walk.start_at + deadline_s - walk.left_s - max(2 * worst_s, worst_s + tick_s) - tick_s


def _longest_for_the_money(walk: _Walk) -> Place | None:
    if walk.place is not None:
        return walk.place
    scenario, cloud = walk.scenario, walk.cloud
    found: list[tuple[float, Place]] = []
    for zone, trace in enumerate(scenario.zones):
        place = zone, Market.SPOT
        if not cloud.sells(*place, walk.now):
            continue
        start_s = cloud.cold_start_s(*place, walk.now)
        life_s = min(cloud.taken_at(*place, walk.now) - walk.now, start_s + walk.left_s)
        if life_s > start_s:
            found.append((trace.price(walk.now) * life_s / (life_s - start_s), place))
    return min(found)[1] if found else None
