"""Shortens a failing scenario: drops faults and jobs one by one, as long as an invariant is still violated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from faultworld.clusters.plans import ClusterPlan
from faultworld.scenario import Scenario


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool], *, tries: int = 300) -> Scenario:
    """A smaller scenario that still `fails`. Greedy: the first smaller one that fails is kept. At most `tries` runs."""
    has_shrunk = True
    while has_shrunk:
        has_shrunk = False
        for smaller in _smaller(scenario):
            if tries == 0:
                return scenario
            tries -= 1
            if fails(smaller):
                scenario, has_shrunk = smaller, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios with one job, fault or complication less."""
    yield from _with_smaller_clusters(scenario)
    for i in range(len(scenario.jobs)):
        if len(scenario.jobs) + len(scenario.clusters) > 1:
            yield replace(scenario, jobs=scenario.jobs[:i] + scenario.jobs[i + 1 :])
    for i in range(len(scenario.faults)):
        yield replace(scenario, faults=scenario.faults[:i] + scenario.faults[i + 1 :])
    for i, job in enumerate(scenario.jobs):
        simpler_jobs = [
            replace(job, cancel_at=None, urgent_cancel_at=None),
            replace(job, repeat_after_s=None),
            replace(job, nodes=1),
            replace(job, bucket=""),
            replace(job, tasks=job.tasks[:1]),
            replace(job, tasks=tuple(replace(t, failures=0) for t in job.tasks)),
        ]
        for simpler_job in simpler_jobs:
            if simpler_job != job:
                yield replace(scenario, jobs=(*scenario.jobs[:i], simpler_job, *scenario.jobs[i + 1 :]))
    for name in ("listing_delay_s", "ending_s", "controller_skew_s", "node_skew_s", "log_lag_s"):
        if getattr(scenario, name):
            changes: dict[str, Any] = {name: 0.0}
            yield replace(scenario, **changes)


def _with_smaller_clusters(scenario: Scenario) -> Iterator[Scenario]:
    for i, cluster in enumerate(scenario.clusters):
        others = (*scenario.clusters[:i], *scenario.clusters[i + 1 :])
        if others:
            yield replace(scenario, clusters=others)
        for simpler in _smaller_clusters(cluster):
            yield replace(scenario, clusters=(*scenario.clusters[:i], simpler, *scenario.clusters[i + 1 :]))


def _smaller_clusters(cluster: ClusterPlan) -> Iterator[ClusterPlan]:
    """Plans with one job or request less."""
    for i in range(1, len(cluster.jobs)):
        yield replace(cluster, jobs=(*cluster.jobs[:i], *cluster.jobs[i + 1 :]))
    for i in range(len(cluster.requests)):
        yield replace(cluster, requests=(*cluster.requests[:i], *cluster.requests[i + 1 :]))
    for i, job in enumerate(cluster.jobs):
        for simpler in (replace(job, cancel_at=None), replace(job, tasks=(replace(job.tasks[0], failures=0),))):
            if simpler != job:
                yield replace(cluster, jobs=(*cluster.jobs[:i], simpler, *cluster.jobs[i + 1 :]))
    for simpler_cluster in (
        replace(cluster, repeat_after_s=None),
        replace(cluster, recover=False),
        replace(cluster, kills=0),
    ):
        if simpler_cluster != cluster:
            yield simpler_cluster
