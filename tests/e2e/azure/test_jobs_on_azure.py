"""Jobs on Azure, from the daemon's first call to the bill."""

from __future__ import annotations

import pytest

from perdure.recovery.market.view import Market
from support.worlds.jobs_on_clouds import JobsOnClouds

pytestmark = pytest.mark.long

# In the first region the job never ends; in the other it ends at once.
WORK = """
trap 'echo received SIGTERM; exit 1' TERM
echo runs on $(hostname) as $SKYPILOT_TASK_ID
case "$SKYPILOT_CLUSTER_INFO" in *eastus*) while :; do sleep 0.1; done ;; esac
echo done
"""
ONE_TYPE = {"infra": "azure", "instance_type": "Standard_F2s_v2", "use_spot": True}
EAST_US = [f"eastus-{number}" for number in (1, 2, 3)]


def test_evicted_job__finishes_where_there_is_capacity(on_azure: JobsOnClouds) -> None:
    azure = on_azure.fakes["azure"]
    job = on_azure.launch("wanderer", WORK, resources=ONE_TYPE)
    on_azure.until_printed(job, "runs on")
    (first,) = azure.living()
    azure.faults.capacity = dict.fromkeys(EAST_US, 0)
    azure.evict(first.id, notice_s=30)
    shown = on_azure.until(job, "SUCCEEDED")

    first, second = azure.purchases()
    assert (first.zone, second.region) == ("eastus-1", "northeurope")
    assert first.market is second.market is Market.SPOT
    log = on_azure.controller.log(job)
    assert "received SIGTERM" in log, log
    assert log.count(f"as {shown['task_id']}\n") == 2
    assert f"runs on {second.id}" in log
    kinds = [event["kind"] for event in shown["timeline"]]
    assert "node.notice" in kinds
    assert shown["recovery_count"] == 1
    assert "SkuNotAvailable" in str(shown["timeline"])
    assert not azure.metadata_of(first.id).acknowledged
    on_azure.check_cost_matches_bill(job, within_s=20)


def test_machine_without_capacity__is_launched_elsewhere(on_azure: JobsOnClouds) -> None:
    azure = on_azure.fakes["azure"]
    azure.faults.late = dict.fromkeys(EAST_US, "ZonalAllocationFailed")
    job = on_azure.launch("latecomer", WORK, resources=ONE_TYPE)
    shown = on_azure.until(job, "SUCCEEDED")
    assert [one.region for one in azure.purchases()] == ["eastus"] * 3 + ["northeurope"]
    lost = [event for event in shown["timeline"] if event["kind"] == "attempt.lost"]
    assert {event["reason"] for event in lost} == {"NO_CAPACITY"}
    assert shown["recovery_count"] == 0
    on_azure.check_cost_matches_bill(job, within_s=20)


def test_simulated_eviction__takes_both_nodes(on_azure: JobsOnClouds) -> None:
    azure = on_azure.fakes["azure"]
    azure.faults.evicted_after_s = 5.0
    job = on_azure.launch("pair", WORK, num_nodes=2, resources=ONE_TYPE)
    on_azure.controller.until(lambda: on_azure.controller.log(job).count("runs on") == 2, "both nodes")
    azure.faults.capacity = dict.fromkeys(EAST_US, 0)
    on_azure.controller.perdure("jobs", "preempt", job, "--notice", "5")
    shown = on_azure.until(job, "SUCCEEDED")
    assert [(one.region, one.index) for one in azure.purchases()].count(("northeurope", 1)) == 1
    assert len(azure.purchases()) == 4
    assert shown["recovery_count"] == 1
    on_azure.check_cost_matches_bill(job, within_s=20)
