"""Histories of clusters: launch, exec, stop, start, cancel, autostop and down, with the faults of every history."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from faultworld.clusters.plans import cluster_scenario_of
from faultworld.history import run
from faultworld.totals import run_seeds
from perdure.controller.clouds import slot_cloud as slot_cloud
from perdure.controller.maintenance.cluster_upkeep import ClusterUpkeep
from perdure.controller.store.records import cluster_slots, clusters
from perdure.controller.submit.clusters import ClusterService

# tests/conftest.py sums them up in the terminal.
HISTORIES = "histories_survived"
QUICK_COUNT, LONG_COUNT = 40, 3_000
PER_TEST, MAX_SEEDS = 20, 300


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
@pytest.mark.parametrize("first", range(QUICK_COUNT, QUICK_COUNT + LONG_COUNT, 5 * PER_TEST))
def test_invariants__hold_in_many_histories(first: int, request: pytest.FixtureRequest) -> None:
    assert_invariants(range(first, first + 5 * PER_TEST), request)


def a_start_is_not_completed(patch: pytest.MonkeyPatch) -> None:
    """A controller that dies in the middle of a start leaves a cluster without machines."""
    real = ClusterUpkeep._settle_wanted

    def settle(self: ClusterUpkeep, cluster: Any, host: Any) -> None:
        if host is None or host.key == clusters.host_key(cluster.id, cluster.starts):
            real(self, cluster, host)

    patch.setattr(ClusterUpkeep, "_settle_wanted", settle)


def machines_of_an_earlier_start_run_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clusters, "stray_hosts", lambda _conn: [])
    patch.setattr(ClusterService, "_end_host", lambda _self, _host: None)


def a_slot_is_gone_when_its_end_is_requested(patch: pytest.MonkeyPatch) -> None:
    real = cluster_slots.request_stop

    def request_stop(conn: Any, keys: Any, now: float) -> None:
        real(conn, keys, now)
        for (job_id, _, generation), rank in keys:
            where = (cluster_slots.Slot.c.job_id == job_id, cluster_slots.Slot.c.generation == generation)
            conn.execute(
                cluster_slots.Slot.update().where(*where, cluster_slots.Slot.c.rank == rank).values(ended_at=now)
            )

    patch.setattr(cluster_slots, "request_stop", request_stop)


def down_leaves_jobs_that_are_added_meanwhile(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClusterUpkeep, "_cancel_left", lambda _self, _id: None)


def a_launch_takes_no_notice_of_taken_slots(patch: pytest.MonkeyPatch) -> None:
    real = cluster_slots.of_attempt
    patch.setattr(slot_cloud.cluster_slots, "of_attempt", lambda conn, key: [] if key[2] > 1 else real(conn, key))


MUTATIONS = (
    a_start_is_not_completed,
    machines_of_an_earlier_start_run_on,
    a_slot_is_gone_when_its_end_is_requested,
    down_leaves_jobs_that_are_added_meanwhile,
    a_launch_takes_no_notice_of_taken_slots,
)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_simulation__finds_every_mutation_of_clusters(mutation: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutation(patch)
        failing = next((s for s in map(cluster_scenario_of, range(MAX_SEEDS)) if run(s).violation is not None), None)
    assert failing is not None, f"no history of {MAX_SEEDS} seeds reveals {mutation.__name__}"
    assert run(failing).violation is None, "the same history violates an invariant without the mutation"
