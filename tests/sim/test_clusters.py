"""Histories of clusters: launch, exec, stop, start, cancel, autostop and down, with the faults of every history."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from faultworld.clusters.plans import UserRequest, cluster_scenario_of
from faultworld.history import run
from faultworld.scenario import Scenario
from faultworld.totals import run_seeds
from perdure.controller.maintenance.cluster_upkeep import ClusterUpkeep
from perdure.controller.store.records import clusters
from perdure.controller.submit.cluster.clusters import ClusterService

# tests/conftest.py sums them up in the terminal.
HISTORIES = "histories_survived"
QUICK_COUNT, LONG_COUNT = 5, 3_000
PER_TEST, MAX_SEEDS = 5, 60


def assert_invariants(seeds: range, request: pytest.FixtureRequest) -> None:
    totals, failed = run_seeds(seeds, cluster_scenario_of)
    violations = {seed: str(run(cluster_scenario_of(seed)).violation) for seed in failed[:3]}
    assert not failed, f"{violations}; see `make sim CLUSTERS=1 SEED={failed[0]}`"
    request.node.user_properties.append((HISTORIES, json.dumps(vars(totals))))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, QUICK_COUNT, PER_TEST))
def test_invariants__hold(first: int, request: pytest.FixtureRequest) -> None:
    assert_invariants(range(first, first + PER_TEST), request)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(QUICK_COUNT, QUICK_COUNT + LONG_COUNT, 10 * PER_TEST))
def test_invariants__hold_in_many_histories(first: int, request: pytest.FixtureRequest) -> None:
    assert_invariants(range(first, first + 10 * PER_TEST), request)


def a_start_is_not_completed(patch: pytest.MonkeyPatch) -> None:
    """A controller that dies in the middle of a start leaves a cluster without machines."""
    real = ClusterUpkeep._settle_wanted

    def settle(self: ClusterUpkeep, cluster: Any, host: Any) -> None:
        if host is None or host.key == clusters.host_key(cluster.id, cluster.starts):
            real(self, cluster, host)

    patch.setattr(ClusterUpkeep, "_settle_wanted", settle)


def machines_of_an_earlier_start_run_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clusters, "stray_hosts", lambda _conn: [])
    patch.setattr(ClusterService, "_end_host", lambda *_: None)


def down_leaves_jobs_that_are_not_cancelled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClusterUpkeep, "_cancel_left", lambda _self, _id: None)


Make = Callable[[int], Scenario]
KINDS = ("launch", "stop", "start", "down")
STEPS = range(1, 17)  # more than a request has: the last ones are those of what it sets off


def deaths_at(kind: str, step: int = 0, *, keeps_disks: bool = False) -> Make:
    """Scenarios in which a controller dies at a step (0: at any) of the first request of this kind.

    The request is not repeated, unless it is a launch. `keeps_disks`: the machines are stopped and started again.
    """
    machines: dict[str, Any] = {"spot": False, "recover": False} if keeps_disks else {}

    def make(seed: int) -> Scenario:
        scenario = cluster_scenario_of(seed, kinds=("preempt",), controllers=(0, 2))
        requests = [UserRequest(20.0, "stop"), UserRequest(30.0, "start"), UserRequest(40.0, "down")]
        requests = [replace(one, repeats=one.kind != kind) for one in requests if kind == "down" or one.kind != "down"]
        plans = (
            replace(plan, requests=tuple(requests), kills=1, kills_at=kind, kill_step=step, idle_s=None, **machines)
            for plan in scenario.clusters
        )
        return replace(scenario, clusters=tuple(plans))

    return make


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("keeps_disks", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_death__between_any_two_steps_of_a_request_leaves_nothing_running_and_nothing_lost(
    kind: str, keeps_disks: bool
) -> None:
    deaths = starts = 0
    for step in STEPS:
        scenario = deaths_at(kind, step, keeps_disks=keeps_disks)(step)
        history = run(scenario)
        assert history.violation is None, f"{kind}, step {step}: {history.violation}"
        deaths += history.fault_counts["a controller is killed in a request"]
        starts += history.fault_counts["a stopped machine was started"]
    assert deaths >= len(STEPS), "each history kills a controller"
    assert (starts > 0) == keeps_disks or kind in ("launch", "down"), "disks are kept over stop and start"


MUTATIONS: dict[Callable[[pytest.MonkeyPatch], None], Make] = {
    a_start_is_not_completed: deaths_at("start"),
    machines_of_an_earlier_start_run_on: deaths_at("stop"),
    down_leaves_jobs_that_are_not_cancelled: deaths_at("down"),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_simulation__finds_every_mutation_of_clusters(mutation: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutation(patch)
        failing = next((s for s in map(MUTATIONS[mutation], range(MAX_SEEDS)) if run(s).violation is not None), None)
    assert failing is not None, f"no history of {MAX_SEEDS} seeds reveals {mutation.__name__}"
    assert run(failing).violation is None, "the same history violates an invariant without the mutation"
