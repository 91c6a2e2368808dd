"""What is simulated: a job of known length on recorded markets; and what became of it in one window of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, gcd

from perdure.recovery.offers import Market
from perdure.recovery.simulate.traces import BadTrace, ZoneTrace, common_span

WORST_SIGMAS = 3.0

# Without a deadline, a run gets so many times the work's length before its traces may end.
_PATIENT = 3.0


@dataclass(frozen=True)
class Scenario:
    """Durations are in seconds, prices in USD.

    `cold_start_s`: from launch to the first new step of training, on average; it is billed and makes no progress.
    `cold_start_sigma`: 0 for always the same, else the spread of a log-normal with that mean, cut at three sigmas.
    `checkpoint_every_s`: what a loss without notice throws away at the most; 0: nothing, everything is always durable.
    `notice_s`: how long before a preemption its notice comes; 0: none comes. On a notice the job saves and leaves.
    `quota`: how many machines of a market a region lets the account have at a time; 0: any number.
    `probe_every_s`: how often the controller learns which offers could be had without buying; 0: never, launches tell.
    `warm_up_s`: for how long before a window's start it had been learning so.
    `seen_starts`: how many start-ups the controller had seen before, of other jobs; 0: it has to guess at first.
    `use_on_demand`: whether the task may run on on-demand machines as well.
    """

    zones: tuple[ZoneTrace, ...]
    work_s: int
    deadline_s: int | None = None
    cold_start_s: int = 720
    cold_start_sigma: float = 0.0
    checkpoint_every_s: float = 0.0
    notice_s: float = 0.0
    num_nodes: int = 1
    quota: int = 0
    egress_per_gb: float = 0.0
    checkpoint_gb: float = 0.0
    probe_every_s: float = 0.0
    warm_up_s: float = 0.0
    seen_starts: int = 10
    use_on_demand: bool = True
    patience: float = 0.05
    seed: int = 0

    @property
    def move_cost(self) -> float:
        """USD for carrying the checkpoint to another region."""
        return self.egress_per_gb * self.checkpoint_gb

    @property
    def worst_cold_start_s(self) -> float:
        sigma = self.cold_start_sigma
        return self.cold_start_s * exp(WORST_SIGMAS * sigma - sigma**2 / 2) + self.grid_s * (sigma > 0)

    @cached_property
    def grid_s(self) -> int:
        """Every duration of the scenario is a multiple of this: the grid on which the optimum is exact."""
        lengths = [self.work_s, self.cold_start_s, *(z.gap_s for z in self.zones)]
        return gcd(*lengths, *([self.deadline_s] if self.deadline_s else []))

    @cached_property
    def span(self) -> tuple[float, float]:
        return common_span(self.zones)

    @property
    def horizon_s(self) -> float:
        """How much of the traces a window needs."""
        return self.deadline_s if self.deadline_s is not None else _PATIENT * self.work_s

    @property
    def tick_s(self) -> int:
        return min(zone.gap_s for zone in self.zones)

    def starts(self, count: int, horizon_s: float) -> tuple[float, ...]:
        """`count` moments, evenly spread, on ticks of the first zone, with `horizon_s` left to the end of the traces.

        Fewer if there are not as many. Raises `BadTrace` if they are too short for one.
        """
        begin, end = self.span
        gap = self.zones[0].gap_s
        ticks = int((end - begin - horizon_s) // gap)
        if ticks < 0:
            raise BadTrace(
                f"the traces cover {(end - begin) / 3600:.0f} h together, and a window takes {horizon_s / 3600:.0f} h: "
                "give longer traces, or less work, or a nearer deadline"
            )
        count = min(count, ticks + 1)
        return tuple(begin + gap * (i * ticks // max(1, count - 1)) for i in range(count))


@dataclass(frozen=True)
class Stay:
    """A machine's life in a run. `running_at`: when work began there; None if it never did."""

    zone: int
    market: Market
    launched_at: float
    ended_at: float
    running_at: float | None = None
    stopped_at: float | None = None


@dataclass(frozen=True)
class Run:
    """What became of the job in one window. Cost in USD; `finish_s` after `start_at`, None if the traces ended first.

    `hours`: machine hours that were billed. `lost_s`: work that was done twice. `stays`: one per attempt.
    """

    start_at: float
    cost: float
    finish_s: float | None
    hours: dict[Market, float]
    launches: int = 0
    refused: int = 0
    preemptions: int = 0
    lost_s: float = 0.0
    stays: tuple[Stay, ...] = ()
    notes: tuple[str, ...] = ()

    def is_late(self, deadline_s: float | None) -> bool:
        return deadline_s is not None and (self.finish_s is None or self.finish_s > deadline_s + 1e-6)


def machine_hours(stays: Sequence[Stay], num_nodes: int) -> dict[Market, float]:
    hours = dict.fromkeys(Market, 0.0)
    for stay in stays:
        hours[stay.market] += (stay.ended_at - stay.launched_at) / 3600 * num_nodes
    return hours
