"""Many windows: every policy, the baselines and the optimum in the same windows, on several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing import get_context

from perdure.recovery.policies.registry import get_policy
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
    """One simulated span of time."""

    scenario: int  # index into `Simulation.scenarios`
    start_at: float  # epoch seconds


@dataclass(frozen=True)
class Simulation:
    """The results. Every sequence by policy, and `fastest_s`, has one entry per window, in the order of `windows`."""

    scenarios: tuple[Scenario, ...]
    windows: tuple[Window, ...]
    runs: Mapping[str, tuple[Run, ...]]  # by policy, baselines first
    # By policy: the least USD for which the job could have been done by the deadline. Without a deadline: by the time
    # at which that policy finished, NaN if it never did.
    optimum_costs: Mapping[str, tuple[float, ...]]
    fastest_s: tuple[float | None, ...]  # the soonest that the job could have been done, within the scenario

    def scenario(self, window: int) -> Scenario:
        return self.scenarios[self.windows[window].scenario]


def simulate(
    scenarios: Scenario | Sequence[Scenario],
    policies: Sequence[str],
    *,
    windows: int = 300,
    processes: int = 1,
    with_optimum: bool = True,
    keep_timeline: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Simulation:
    """Run each of `policies` (names of the registry, or of `BASELINES`) in `windows` windows of each scenario.

    The usual baselines are added. `on_progress` is called with the number of windows just done. Raises
    `UnknownStrategy`, `optimum.GridTooFine`, and `BadTrace` if the traces are too short.
    """
    all_scenarios = (scenarios,) if isinstance(scenarios, Scenario) else tuple(scenarios)
    windows_to_run = tuple(
        Window(i, at) for i, s in enumerate(all_scenarios) for at in s.window_starts(windows, s.horizon_s)
    )
    usual = WITH_DEADLINE if all(s.deadline_s is not None for s in all_scenarios) else WITHOUT_DEADLINE
    names = tuple(dict.fromkeys([*usual, *policies]))
    for name in names:
        if name not in BASELINES:
            get_policy(name)
    work = _Work(all_scenarios, names, with_optimum=with_optimum, keep_timeline=keep_timeline)
    results = []
    with _mapper(work, processes, len(windows_to_run)) as done:
        for result in done(windows_to_run):
            results.append(result)
            on_progress(1)
    return Simulation(
        all_scenarios,
        windows_to_run,
        runs={name: tuple(r.runs[i] for r in results) for i, name in enumerate(names)},
        optimum_costs={name: tuple(r.optimum_costs[i] for r in results) for i, name in enumerate(names)},
        fastest_s=tuple(r.fastest_s for r in results),
    )


# --- one window -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Result:
    runs: tuple[Run, ...]
    optimum_costs: tuple[float, ...]
    fastest_s: float | None


class _Work:
    """What a worker process needs to simulate any window."""

    def __init__(
        self, scenarios: Sequence[Scenario], names: Sequence[str], *, with_optimum: bool, keep_timeline: bool
    ) -> None:
        self.clouds = [TraceCloud(scenario) for scenario in scenarios]
        self.names = names
        self.with_optimum = with_optimum
        self.keep_timeline = keep_timeline

    def __call__(self, window: Window) -> _Result:
        cloud = self.clouds[window.scenario]
        runs = tuple(self._run(cloud, name, window.start_at) for name in self.names)
        return _Result(runs, self._optimum_costs(cloud, window.start_at, runs), fastest(cloud, window.start_at))

    def _run(self, cloud: TraceCloud, name: str, start_at: float) -> Run:
        if name in BASELINES:
            return BASELINES[name](cloud, start_at)
        return World(cloud, name, start_at, keep_timeline=self.keep_timeline).run()

    def _optimum_costs(self, cloud: TraceCloud, start_at: float, runs: Sequence[Run]) -> tuple[float, ...]:
        if not self.with_optimum:
            return (float("nan"),) * len(runs)
        deadline_s = cloud.scenario.deadline_s
        if deadline_s is not None:
            return (optimum(cloud, start_at, deadline_s),) * len(runs)
        costs = {s: optimum(cloud, start_at, s) for s in {r.finish_s for r in runs} if s is not None}
        return tuple(float("nan") if r.finish_s is None else costs[r.finish_s] for r in runs)


# --- processes --------------------------------------------------------------------------------------------------------

_Mapper = Callable[[Sequence[Window]], Iterator[_Result]]
_work: _Work | None = None


def _mapper(work: _Work, processes: int, windows: int) -> _Pool | nullcontext[_Mapper]:
    if processes <= 1 or windows < 2 * processes:
        return nullcontext(lambda windows_to_run: map(work, windows_to_run))
    return _Pool(work, processes)


class _Pool:
    """Worker processes. Each holds the `_Work`, so that only windows and results are sent."""

    def __init__(self, work: _Work, processes: int) -> None:
        self._pool = get_context().Pool(processes, initializer=_set_work, initargs=(work,))

    def __enter__(self) -> _Mapper:
        return lambda windows_to_run: self._pool.imap(_run_window, windows_to_run, chunksize=4)

    def __exit__(self, kind: object, *_: object) -> None:
        """Let the processes end by themselves, unless an exception makes their work useless."""
        if kind is None:
            self._pool.close()
        else:
            self._pool.terminate()
        self._pool.join()


def _set_work(work: _Work) -> None:
    global _work  # noqa: PLW0603 - a worker process has one `_Work`
    _work = work


def _run_window(window: Window) -> _Result:
    assert _work is not None
    return _work(window)
