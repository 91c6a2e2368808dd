"""`make sim`: runs histories until stopped, or prints the trace of one seed. A failing scenario is shortened first."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial

from faultworld.clusters.plans import cluster_scenario_of
from faultworld.history import History, run
from faultworld.scenario import Scenario, scenario_of
from faultworld.shrink import shrink
from faultworld.totals import Totals, run_seeds

PER_BATCH = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description="Simulate controllers in a world that fails.")
    parser.add_argument("--seed", type=int, help="print the trace of this seed")
    parser.add_argument("--first", type=int, default=0, help="the first seed of a run (default: 0)")
    parser.add_argument("--count", type=int, help="how many seeds to run (default: until stopped)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--clusters", action="store_true", help="histories of clusters")
    options = parser.parse_args()
    make: Callable[[int], Scenario] = cluster_scenario_of if options.clusters else scenario_of
    if options.seed is not None:
        return _show(make(options.seed))
    last = None if options.count is None else options.first + options.count
    return _run_all(_batches(options.first, last), options.jobs, make)


def _show(scenario: Scenario) -> int:
    history = run(scenario)
    print(history.trace)
    if history.violation is None:
        print(f"seed {scenario.seed}: every invariant held, after {history.transactions} transactions")
        return 0
    return _print_shortened(history)


def _batches(first: int, last: int | None) -> Iterable[range]:
    for start in itertools.count(first, PER_BATCH):
        if last is not None and start >= last:
            return
        yield range(start, start + PER_BATCH if last is None else min(last, start + PER_BATCH))


def _run_all(batches: Iterable[range], jobs: int, make: Callable[[int], Scenario]) -> int:
    totals, failed = Totals(), 0
    with multiprocessing.get_context("fork").Pool(jobs, initializer=_ignore_sigint) as pool:
        try:
            for done, seeds in pool.imap_unordered(partial(run_seeds, make=make), batches):
                before, totals = totals, totals + done
                for seed in seeds:
                    failed += 1
                    _print_shortened(run(make(seed)))
                if before.histories // 100 != totals.histories // 100:
                    print(f"{totals.histories} histories, {failed} failed", flush=True)
        except KeyboardInterrupt:
            pass
    print(totals)
    return 1 if failed else 0


def _ignore_sigint() -> None:
    """Only the parent process handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _print_shortened(history: History) -> int:
    """Shorten a failing scenario, and print it and its trace. Returns the exit code."""
    seed = history.scenario.seed

    def fails(scenario: Scenario) -> bool:
        return run(scenario).violation is not None

    short = run(shrink(history.scenario, fails))
    print(f"\nseed {seed} breaks an invariant: {history.violation}\nshortened to:\n{short.scenario}\n")
    print(short.trace, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
