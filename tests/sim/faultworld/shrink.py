"""Makes the story of a failing seed short: drops faults and jobs one by one, as long as an invariant still breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from faultworld.scenario import Scenario


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool], *, tries: int = 300) -> Scenario:
    """The smallest scenario found within `tries` runs that still `fails`. Greedy: what can go, goes first come."""
    found = True
    while found:
        found = False
        for smaller in _smaller(scenario):
            if tries == 0:
                return scenario
            tries -= 1
            if fails(smaller):
                scenario, found = smaller, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    for i in range(len(scenario.jobs)):
        if len(scenario.jobs) > 1:
            yield replace(scenario, jobs=scenario.jobs[:i] + scenario.jobs[i + 1 :])
    for i in range(len(scenario.faults)):
        yield replace(scenario, faults=scenario.faults[:i] + scenario.faults[i + 1 :])
    for i, job in enumerate(scenario.jobs):
        plainer = [
            replace(job, cancel_at=None, hurry_at=None),
            replace(job, repeat_after_s=None),
            replace(job, nodes=1),
            replace(job, bucket=False),
            replace(job, tasks=job.tasks[:1]),
            replace(job, tasks=tuple(replace(t, fails=0) for t in job.tasks)),
        ]
        for plain in plainer:
            if plain != job:
                yield replace(scenario, jobs=(*scenario.jobs[:i], plain, *scenario.jobs[i + 1 :]))
    for name in ("listing_delay_s", "ending_s", "controller_skew_s", "node_skew_s", "log_lag_s"):
        if getattr(scenario, name):
            yield replace(scenario, **{name: 0.0})
