"""`make sim`: histories until stopped, or one seed's story; a seed that fails is told as briefly as it can be."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable

from faultworld.history import History, run
from faultworld.scenario import Scenario, scenario_of
from faultworld.shrink import shrink
from faultworld.totals import Totals, survived

PER_BATCH = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description="Simulate controllers in a world that fails.")
    parser.add_argument("--seed", type=int, help="tell the story of this seed")
    parser.add_argument("--first", type=int, default=0, help="the first seed of a run (default: 0)")
    parser.add_argument("--count", type=int, help="how many seeds to run (default: until stopped)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    wanted = parser.parse_args()
    if wanted.seed is not None:
        return _tell(wanted.seed)
    last = None if wanted.count is None else wanted.first + wanted.count
    return _hunt(_batches(wanted.first, last), wanted.jobs)


def _tell(seed: int) -> int:
    history = run(scenario_of(seed))
    print(history.story)
    if history.violation is None:
        print(f"seed {seed}: every invariant held, after {history.checks} transactions")
        return 0
    return _explain(history)


def _batches(first: int, last: int | None) -> Iterable[range]:
    for start in itertools.count(first, PER_BATCH):
        if last is not None and start >= last:
            return
        yield range(start, start + PER_BATCH if last is None else min(last, start + PER_BATCH))


def _hunt(batches: Iterable[range], jobs: int) -> int:
    totals, failed = Totals(), 0
    with multiprocessing.get_context("fork").Pool(jobs, initializer=_leave_signals_alone) as pool:
        try:
            for done, seeds in pool.imap_unordered(survived, batches):
                before, totals = totals, totals + done
                for seed in seeds:
                    failed += 1
                    _explain(run(scenario_of(seed)))
                if before.histories // 100 != totals.histories // 100:
                    print(f"{totals.histories} histories, {failed} failed", flush=True)
        except KeyboardInterrupt:
            pass
    print(totals)
    return 1 if failed else 0


def _leave_signals_alone() -> None:
    """Ctrl-C is for the one that counts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _explain(history: History) -> int:
    seed = history.scenario.seed

    def fails(scenario: Scenario) -> bool:
        return run(scenario).violation is not None

    short = run(shrink(history.scenario, fails))
    print(f"\nseed {seed} breaks an invariant: {history.violation}\nas briefly as it can be told:\n{short.scenario}\n")
    print(short.story, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
