"""`make sim`: histories until stopped, or one seed's story; a seed that fails is told as briefly as it can be."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Iterable

from faultworld.history import History, run
from faultworld.scenario import Scenario, scenario_of
from faultworld.shrink import shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description="Simulate the controller in a world that fails.")
    parser.add_argument("--seed", type=int, help="tell the story of this seed")
    parser.add_argument("--first", type=int, default=0, help="the first seed of a run (default: 0)")
    parser.add_argument("--count", type=int, help="how many seeds to run (default: until stopped)")
    wanted = parser.parse_args()
    if wanted.seed is not None:
        return _tell(wanted.seed)
    seeds = itertools.count(wanted.first)
    return _hunt(seeds if wanted.count is None else itertools.islice(seeds, wanted.count))


def _tell(seed: int) -> int:
    history = run(scenario_of(seed))
    print(history.story)
    if history.violation is None:
        print(f"seed {seed}: every invariant held, after {history.checks} transactions")
        return 0
    return _explain(history)


def _hunt(seeds: Iterable[int]) -> int:
    met: Counter[str] = Counter()
    count = failed = 0
    try:
        for seed in seeds:
            history = run(scenario_of(seed))
            count, met = count + 1, met + history.met
            if history.violation is not None:
                failed += 1
                _explain(history)
            elif count % 100 == 0:
                print(f"{count} histories, {failed} failed", flush=True)
    except KeyboardInterrupt:
        pass
    print(totals(count, met))
    return 1 if failed else 0


def totals(count: int, met: Counter[str]) -> str:
    """What so many histories survived, in a few lines."""
    kills = Counter({name: n for name, n in met.items() if name.startswith("killed: ")})
    faults = sum((met - kills).values())
    lines = [
        f"{count} histories, {faults} faults of {len(met - kills)} kinds, {sum(kills.values())} deaths of a controller"
    ]
    lines += [f"  {n:7d}  {name}" for name, n in sorted(met.items(), key=lambda item: -item[1])]
    return "\n".join(lines)


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
