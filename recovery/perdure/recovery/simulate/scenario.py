"""What to simulate (a job of known length on recorded markets), and the result of a run in one window of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, gcd

from perdure.recovery.market.offers import Market
from perdure.recovery.simulate.traces import BadTrace, ZoneTrace, common_span

WORST_SIGMAS = 3.0

# Without a deadline, a window is this many times as long as the work.
_HORIZON_FACTOR = 3.0


@dataclass(frozen=True)
class Scenario:
    """Durations are in seconds, prices in USD."""

    zones: tuple[ZoneTrace, ...]
    work_s: int
    deadline_s: int | None = None
    cold_start_s: int = 720  # mean, from launch to the first new training step; billed, without progress
    cold_start_sigma: float = 0.0  # 0: constant; else the sigma of a log-normal with that mean, cut at three sigmas
    checkpoint_every_s: float = 0.0  # the most that a loss without notice costs; 0: all work is durable at once
    notice_s: float = 0.0  # from the notice to the preemption; 0: no notice. On a notice the job saves and leaves
    num_nodes: int = 1
    quota: int = 0  # machines of a market that a region allows at a time; 0: unlimited
    egress_per_gb: float = 0.0
    checkpoint_gb: float = 0.0
    probe_every_s: float = 0.0  # how often the controller observes all offers without launching; 0: never
    warm_up_s: float = 0.0  # for how long it had been probing when a window starts
    prior_starts: int = 10  # start-ups of other jobs that the controller has observed before
    use_on_demand: bool = True  # whether the task may run on on-demand machines as well
    patience: float = 0.05
    stated_work_s: int | None = None  # `work` as the task states it; None: the truth
    on_time: float = 1.0  # the share of runs that must meet the deadline
    steps: int = 0  # training steps of the work, which saves report; 0: they report none
    seed: int = 0

    @property
    def move_cost(self) -> float:
        """USD for transferring the checkpoint to another region."""
        return self.egress_per_gb * self.checkpoint_gb

    @property
    def worst_cold_start_s(self) -> float:
        sigma = self.cold_start_sigma
        return self.cold_start_s * exp(WORST_SIGMAS * sigma - sigma**2 / 2) + self.grid_s * (sigma > 0)

    @cached_property
    def grid_s(self) -> int:
        """The greatest common divisor of all durations: the grid on which the optimum is exact."""
        lengths = [self.work_s, self.cold_start_s, *(z.gap_s for z in self.zones)]
        return gcd(*lengths, *([self.deadline_s] if self.deadline_s else []))

    @cached_property
    def span(self) -> tuple[float, float]:
        return common_span(self.zones)

    @property
    def horizon_s(self) -> float:
        """The length of a window."""
        return self.deadline_s if self.deadline_s is not None else _HORIZON_FACTOR * self.work_s

    @property
    def tick_s(self) -> int:
        return min(zone.gap_s for zone in self.zones)

    def window_starts(self, count: int, horizon_s: float) -> tuple[float, ...]:
        """Up to `count` evenly spaced ticks of the first zone, each with `horizon_s` left to the end of the traces.

        Raises `BadTrace` if the traces are too short for one.
        """
        begin, end = self.span
        gap = self.zones[0].gap_s
        ticks = int((end - begin - horizon_s) // gap)
        if ticks < 0:
            raise BadTrace(
                f"the traces cover {(end - begin) / 3600:.0f} h together, and a window takes {horizon_s / 3600:.0f} h: "
                "use longer traces, less work, or an earlier deadline"
            )
        count = min(count, ticks + 1)
        return tuple(begin + gap * (i * ticks // max(1, count - 1)) for i in range(count))


@dataclass(frozen=True)
class MachineStay:
    """The life of an attempt's machines in a run."""

    zone: int
    market: Market
    launched_at: float
    ended_at: float
    running_at: float | None = None  # when work began there
    stopped_at: float | None = None


@dataclass(frozen=True)
class Run:
    """The job in one window."""

    start_at: float
    cost: float  # USD
    finish_s: float | None  # after `start_at`; None if the traces ended first
    hours: dict[Market, float]  # machine hours that were billed
    launches: int = 0
    refused: int = 0
    preemptions: int = 0
    lost_s: float = 0.0  # work that was done twice
    stays: tuple[MachineStay, ...] = ()  # one per attempt
    timeline: tuple[str, ...] = ()

    def is_late(self, deadline_s: float | None) -> bool:
        return deadline_s is not None and (self.finish_s is None or self.finish_s > deadline_s + 1e-6)


def machine_hours(stays: Sequence[MachineStay], num_nodes: int) -> dict[Market, float]:
    hours = dict.fromkeys(Market, 0.0)
    for stay in stays:
        hours[stay.market] += (stay.ended_at - stay.launched_at) / 3600 * num_nodes
    return hours
