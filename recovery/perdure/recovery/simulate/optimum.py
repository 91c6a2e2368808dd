"""What the job would have cost with perfect knowledge of the future: the exact optimum, by dynamic programming.

Model: at any moment the job has no machines, or the spot or on-demand machines of one zone. A launch costs its start-up
time (billed, without work), leaving is free and loses nothing, and moving to another region costs what the scenario
says. The work must be done by the deadline.

Time is cut where an availability or a price changes. Within such a segment everything is linear, so in some optimal
plan each launch and each end either lies on a cut or makes the sum of work exact. All lengths are multiples of
`Scenario.grid_s`, so all times of that plan are, too. Minimising over multiples of `grid_s` is therefore exact.

The state is the time *lost* so far, idle or starting, rather than the work done: running does not change it, idling and
launching increase it, and it cannot exceed the deadline less the work. A launch loses its whole start-up time at once,
which makes no difference for runs that last at least as long as their start; no other is worth launching.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from perdure.recovery.market.offers import Market
from perdure.recovery.simulate.cloud import TraceCloud

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Costs = NDArray[np.float64]

# A finer grid makes no measurable difference, and takes minutes.
_MAX_CELLS = 60_000


class GridTooFine(ValueError):
    """The greatest common divisor of the scenario's durations is too small; the message says what to round."""


def optimum(cloud: TraceCloud, start_at: float, deadline_s: float, *, overlap: bool = False) -> float:
    """The least USD for which the job can be done within `deadline_s` of `start_at`; infinity if it cannot.

    `start_at` must lie on a tick, as `Scenario.window_starts` do. `overlap`: a machine may start while the job runs on
    another one. Raises `GridTooFine`, and ImportError if numpy is missing.
    """
    return _Problem(cloud, start_at, deadline_s, overlap=overlap).solve()


def fastest(cloud: TraceCloud, start_at: float) -> float | None:
    """The soonest that the job can be done, in seconds after `start_at`, at any cost; None if the traces end first."""
    work_s, end_at = cloud.scenario.work_s, cloud.scenario.span[1]
    usable = places(cloud)
    # The least time lost so far: with machines in each place, and without machines.
    there, nowhere = [float("inf")] * len(usable), 0.0
    cuts = cloud.cuts[bisect_right(cloud.cuts, start_at) : bisect_left(cloud.cuts, end_at)]
    before: list[float] = [float("inf")] * len(usable)
    for begin, end in pairwise([start_at, *cuts, end_at]):
        has = [cloud.has_capacity(*place, begin) for place in usable]
        nowhere = min([nowhere, *there])
        starts = [cloud.cold_start_s(*place, begin) for place in usable]
        # A launch just before a cut has the start-up time of the segment before it.
        launched = [nowhere + min(now, then) for now, then in zip(starts, before, strict=True)]
        before = [start if up else float("inf") for start, up in zip(starts, has, strict=True)]
        there = [min(t, n) if up else float("inf") for t, n, up in zip(there, launched, has, strict=True)]
        if min(there) + work_s <= end - start_at:
            return min(there) + work_s
        nowhere += end - begin
    return None


@dataclass(frozen=True)
class _Segment:
    """A span of time in which nothing changes."""

    begin_at: float
    length: int  # in cells of the grid
    rates: dict[int, float]  # by available place: USD per cell


class _Problem:
    def __init__(self, cloud: TraceCloud, start_at: float, deadline_s: float, *, overlap: bool) -> None:
        import numpy

        self.np = numpy
        self.overlap = overlap
        self.cloud, self.start_at, self.scenario = cloud, start_at, cloud.scenario
        self.grid_s = self.scenario.grid_s
        self.work = self.scenario.work_s // self.grid_s
        # A deadline off the grid (another policy's finish time) is rounded up, in favour of the optimum.
        self.end = -int(-deadline_s // self.grid_s)
        self.slack = self.end - self.work
        if self.slack > _MAX_CELLS:
            raise GridTooFine(
                f"the work, the deadline, the cold start and the traces' ticks have only {self.grid_s} s as a common "
                "divisor, which is too fine for the exact optimum: round them to whole minutes"
            )
        self.places = places(cloud)
        zones = self.scenario.zones
        # The region of the data matters only if a transfer costs something.
        homes = [zones[zone].region if self.scenario.move_cost else "" for zone, _ in self.places]
        self.regions = sorted(set(homes))
        self.home = numpy.array([self.regions.index(home) for home in homes])
        # From each region (the last row: from none yet) to each region.
        transfer_costs = numpy.full((len(self.regions) + 1, len(self.regions)), self.scenario.move_cost)
        transfer_costs[: len(self.regions)][numpy.eye(len(self.regions), dtype=bool)] = 0.0
        transfer_costs[-1] = 0.0
        self.transfer_costs = transfer_costs

    def solve(self) -> float:
        """Backwards from the deadline. Rows are places, or regions of the data; columns are the time lost so far."""
        if self.slack < 0:
            return float("inf")
        np, at = self.np, self.end
        there = np.full((len(self.places), self.slack + 1), np.inf)
        nowhere = np.full((len(self.regions) + 1, self.slack + 1), np.inf)
        there[:], nowhere[:] = self._with_completion(there, at), self._with_completion(nowhere, at)
        segments = self._segments()
        for i, segment in reversed(list(enumerate(segments))):
            at -= segment.length
            there, nowhere = self._segment_costs(segment, there, nowhere)
            if self.overlap:
                there = np.minimum(there, self._take_over_costs(segments[: i + 1], there)[self.home])
            there, nowhere = self._with_completion(there, at), self._with_completion(nowhere, at)
        return float(nowhere[-1, 0])

    def _segment_costs(self, segment: _Segment, there_after: Costs, nowhere_after: Costs) -> tuple[Costs, Costs]:
        """The costs to go at the segment's begin, from those at its end."""
        np, length, cells = self.np, segment.length, self.slack + 1
        if self.scenario.cold_start_sigma:
            # Machines launched just before the end have the start-up time of this segment.
            nowhere_after = self._with_launches(nowhere_after, segment, there_after)
            there_after = np.minimum(there_after, nowhere_after[self.home])
        there = np.full_like(there_after, np.inf)
        started = there
        if segment.rates:
            available, rates = list(segment.rates), np.array(list(segment.rates.values()))
            homes = self.home[available]
            staying = there_after[available]
            leaving = nowhere_after[homes]
            both = self._idle_some(np.concatenate([staying, leaving]), np.tile(rates, 2), length)
            later, sooner = both[: len(homes)], both[len(homes) :]
            running = np.minimum(staying + rates[:, None] * length, sooner)
            there[available] = running
            started = there.copy()
            started[available] = np.minimum(later, running)
        nowhere = np.full_like(nowhere_after, np.inf)
        nowhere[:, : max(0, cells - length)] = nowhere_after[:, length:]
        nowhere = self._with_launches(nowhere, segment, started)
        return np.minimum(there, nowhere[self.home]), nowhere

    def _with_launches(self, nowhere: Costs, segment: _Segment, there: Costs) -> Costs:
        """`nowhere`, where launching any of the segment's places, to be `there` once it has started, may cost less."""
        np = self.np
        launched = np.full((len(self.regions), self.slack + 1), np.inf)
        for place in segment.rates:
            started = there[place, self._cold_start(place, segment.begin_at) :]
            target = launched[self.home[place], : len(started)]
            np.minimum(target, started, out=target)
        costs: Costs = nowhere
        for region in range(len(self.regions)):
            costs = np.minimum(costs, launched[region] + self.transfer_costs[:, region, None])
        return costs

    def _take_over_costs(self, segments: list[_Segment], there: Costs) -> Costs:
        """By region of the data: the least cost to go for a job that works up to the last segment's begin, and goes on
        with machines launched in any of the earlier segments."""
        np, now = self.np, segments[-1].begin_at
        result: Costs = np.full((len(self.regions), self.slack + 1), np.inf)
        for place in segments[-1].rates:
            until, paid = now, 0.0
            for earlier in reversed(segments[:-1]):
                rate = earlier.rates.get(place)
                start_s = self._cold_start(place, earlier.begin_at) * self.grid_s
                launched_at = max(earlier.begin_at, now - start_s)
                if rate is None or launched_at >= until:
                    break
                length = round((until - launched_at) / self.grid_s)
                ahead = round((start_s - (now - launched_at)) / self.grid_s)
                costs = self._idle_some(there[place][None], np.array([rate]), length)[0, ahead:] + paid
                transfer_costs = self.transfer_costs[:-1, self.home[place]]
                target = result[:, : len(costs)]
                np.minimum(target, costs + transfer_costs[:, None], out=target)
                until, paid = earlier.begin_at, paid + rate * earlier.length
        return result

    def _idle_some(self, costs: Costs, rates: Costs, length: int) -> Costs:
        """For each time lost: the least cost of idling 0 … `length` cells and paying the rate for the rest.

        In terms of `c[l] - rate * l`, that is the minimum over a window, combined from windows of doubled sizes.
        """
        np = self.np
        slope = rates[:, None] * np.arange(self.slack + 1)
        least = costs - slope
        window = 1
        while window < min(length, self.slack) + 1:
            step = min(window, length + 1 - window)
            np.minimum(least[:, :-step], least[:, step:], out=least[:, :-step])
            window += step
        result: Costs = least + slope + rates[:, None] * length
        return result

    def _with_completion(self, costs: Costs, at: int) -> Costs:
        """`costs`, with 0 for states that have finished: the time up to `at`, less the time lost, covers the work."""
        if at >= self.work:
            costs[:, : at - self.work + 1] = 0.0
        return costs

    def _cold_start(self, place: int, at: float) -> int:
        zone, market = self.places[place]
        return round(self.cloud.cold_start_s(zone, market, at) / self.grid_s)

    def _segments(self) -> list[_Segment]:
        """From the start to the deadline, cut where anything changes."""
        end_at = self.start_at + self.end * self.grid_s
        within = self._cuts_until(end_at)
        if self.overlap and not self.scenario.cold_start_sigma:
            # Machines launched on a cut are best used as soon as they have started.
            started = {at + self.scenario.cold_start_s for at in [self.start_at, *within]}
            within = sorted({*within, *(at for at in started if at < end_at)})
        return [self._segment(begin, end) for begin, end in pairwise([self.start_at, *within, end_at])]

    def _cuts_until(self, end_at: float) -> list[float]:
        cuts = self.cloud.cuts
        return cuts[bisect_right(cuts, self.start_at) : bisect_left(cuts, end_at)]

    def _segment(self, begin: float, end: float) -> _Segment:
        usd = self.scenario.num_nodes * self.grid_s / 3600
        has = (i for i, (zone, market) in enumerate(self.places) if self.cloud.has_capacity(zone, market, begin))
        rates = {i: self._price(*self.places[i], begin) * usd for i in has}
        return _Segment(begin, round((end - begin) / self.grid_s), rates)

    def _price(self, zone: int, market: Market, at: float) -> float:
        trace = self.scenario.zones[zone]
        return trace.on_demand_price if market is Market.ON_DEMAND else trace.price(at)


def places(cloud: TraceCloud) -> list[tuple[int, Market]]:
    """Every market of every zone that the job may use; if all zones are alike on-demand, only the cheapest of them."""
    scenario = cloud.scenario
    spot = [(zone, Market.SPOT) for zone in range(len(scenario.zones))]
    if not scenario.use_on_demand:
        return spot
    if scenario.move_cost or scenario.cold_start_sigma:
        return spot + [(zone, Market.ON_DEMAND) for zone in range(len(scenario.zones))]
    cheapest = min(range(len(scenario.zones)), key=lambda i: scenario.zones[i].on_demand_price)
    return [*spot, (cheapest, Market.ON_DEMAND)]
