"""Many windows: every policy, the baselines and the optimum, each in the same windows, on every core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing import get_context

from perdure.recovery.policies.registry import policy
from perdure.recovery.simulate import baselines
from perdure.recovery.simulate.cloud import TraceCloud
from perdure.recovery.simulate.optimum import fastest, optimum
from perdure.recovery.simulate.scenario import Run, Scenario
from perdure.recovery.simulate.world import World

BASELINES: dict[str, Callable[[TraceCloud, float], Run]] = {
    "on-demand": baselines.on_demand,
    "greedy": baselines.greedy,
    "uniform-progress": baselines.uniform_progress,
    "lifetime-oracle": baselines.lifetime_oracle,
}
WITH_DEADLINE = ("on-demand", "greedy", "uniform-progress")
WITHOUT_DEADLINE = ("on-demand", "greedy", "lifetime-oracle")


@dataclass(frozen=True)
class Window:
    """One simulated span of time: which of the scenarios, and from when."""

    scenario: int
    start_at: float


@dataclass(frozen=True)
class Simulation:
    """What came out. Every sequence has one entry per window, in the same order.

    `runs`: by policy, the baselines before those that were asked for. `least`: by policy, the least USD for which the
    job could have been done by the deadline; without one, by the time at which that policy finished (NaN if never).
    `fastest_s`: the soonest that the job could have been done, with or without on-demand, as the scenario allows.
    """

    scenarios: tuple[Scenario, ...]
    windows: tuple[Window, ...]
    runs: Mapping[str, tuple[Run, ...]]
    least: Mapping[str, tuple[float, ...]]
    fastest_s: tuple[float | None, ...]

    def scenario(self, window: int) -> Scenario:
        return self.scenarios[self.windows[window].scenario]


def simulate(
    scenarios: Scenario | Sequence[Scenario],
    policies: Sequence[str],
    *,
    windows: int = 300,
    processes: int = 1,
    with_optimum: bool = True,
    keep_notes: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Simulation:
    """Each of `policies` (names of the registry, or of `BASELINES`) in `windows` windows of each scenario.

    The usual baselines come first by themselves. `on_progress` is called with the number of windows just done. Raises
    `UnknownStrategy`, `optimum.TooFine`, and `BadTrace` where the traces are too short.
    """
    several = (scenarios,) if isinstance(scenarios, Scenario) else tuple(scenarios)
    todo = tuple(Window(i, at) for i, s in enumerate(several) for at in s.starts(windows, s.horizon_s))
    usual = WITH_DEADLINE if all(s.deadline_s is not None for s in several) else WITHOUT_DEADLINE
    names = tuple(dict.fromkeys([*usual, *policies]))
    for name in names:
        if name not in BASELINES:
            policy(name)
    work = _Work(several, names, with_optimum=with_optimum, keep_notes=keep_notes)
    results = []
    with _mapper(work, processes, len(todo)) as done:
        for result in done(todo):
            results.append(result)
            on_progress(1)
    return Simulation(
        several,
        todo,
        runs={name: tuple(r.runs[i] for r in results) for i, name in enumerate(names)},
        least={name: tuple(r.least[i] for r in results) for i, name in enumerate(names)},
        fastest_s=tuple(r.fastest_s for r in results),
    )


# --- one window -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Result:
    runs: tuple[Run, ...]
    least: tuple[float, ...]
    fastest_s: float | None


class _Work:
    """What a process needs to simulate any window."""

    def __init__(
        self, scenarios: Sequence[Scenario], names: Sequence[str], *, with_optimum: bool, keep_notes: bool
    ) -> None:
        self.clouds = [TraceCloud(scenario) for scenario in scenarios]
        self.names = names
        self.with_optimum = with_optimum
        self.keep_notes = keep_notes

    def __call__(self, window: Window) -> _Result:
        cloud = self.clouds[window.scenario]
        runs = tuple(self._run(cloud, name, window.start_at) for name in self.names)
        return _Result(runs, self._least(cloud, window.start_at, runs), fastest(cloud, window.start_at))

    def _run(self, cloud: TraceCloud, name: str, start_at: float) -> Run:
        if name in BASELINES:
            return BASELINES[name](cloud, start_at)
        return World(cloud, name, start_at, keep_notes=self.keep_notes).run()

    def _least(self, cloud: TraceCloud, start_at: float, runs: Sequence[Run]) -> tuple[float, ...]:
        if not self.with_optimum:
            return (float("nan"),) * len(runs)
        deadline_s = cloud.scenario.deadline_s
        if deadline_s is not None:
            return (optimum(cloud, start_at, deadline_s),) * len(runs)
        found = {s: optimum(cloud, start_at, s) for s in {r.finish_s for r in runs} if s is not None}
        return tuple(float("nan") if r.finish_s is None else found[r.finish_s] for r in runs)


# --- processes --------------------------------------------------------------------------------------------------------

_Mapped = Callable[[Sequence[Window]], Iterator[_Result]]
_work: _Work | None = None


def _mapper(work: _Work, processes: int, windows: int) -> _Pool | nullcontext[_Mapped]:
    if processes <= 1 or windows < 2 * processes:
        return nullcontext(lambda todo: map(work, todo))
    return _Pool(work, processes)


class _Pool:
    """Several processes that each hold the work to do; only windows and results travel."""

    def __init__(self, work: _Work, processes: int) -> None:
        self._pool = get_context().Pool(processes, initializer=_take_up, initargs=(work,))

    def __enter__(self) -> _Mapped:
        return lambda todo: self._pool.imap(_do, todo, chunksize=4)

    def __exit__(self, kind: object, *_: object) -> None:
        """Processes that have done all there was end by themselves: to be stopped is for those that are not wanted."""
        if kind is None:
            self._pool.close()
        else:
            self._pool.terminate()
        self._pool.join()


def _take_up(work: _Work) -> None:
    global _work  # noqa: PLW0603 - a process has one piece of work
    _work = work


def _do(window: Window) -> _Result:
    assert _work is not None
    return _work(window)
