"""Jobs on Azure, from the daemon's first call to the bill."""

from __future__ import annotations

from on_clouds import OnClouds
from perdure.recovery.market import Market

# In the first region it never ends by itself; in the other it ends at once.
WORK = """
trap 'echo told to stop; exit 1' TERM
echo runs on $(hostname) as $SKYPILOT_TASK_ID
case "$SKYPILOT_CLUSTER_INFO" in *eastus*) while :; do sleep 0.1; done ;; esac
echo done
"""
ONE_TYPE = {"infra": "azure", "instance_type": "Standard_F2s_v2", "use_spot": True}
EAST_US = [f"eastus-{number}" for number in (1, 2, 3)]


def test_a_job_is_evicted_with_notice_and_ends_where_there_is_room(on_azure: OnClouds) -> None:
    azure = on_azure.fakes["azure"]
    job = on_azure.launch("wanderer", WORK, resources=ONE_TYPE)
    on_azure.until_printed(job, "runs on")
    (first,) = azure.living()
    azure.faults.capacity = dict.fromkeys(EAST_US, 0)
    azure.evict(first.id, notice_s=30)
    shown = on_azure.until(job, "SUCCEEDED")

    first, second = azure.bought()
    assert (first.zone, second.region) == ("eastus-1", "northeurope")
    assert first.market is second.market is Market.SPOT
    log = on_azure.controller.log(job)
    assert "told to stop" in log, log
    assert log.count(f"as {shown['task_id']}\n") == 2
    assert f"runs on {second.id}" in log
    kinds = [event["kind"] for event in shown["timeline"]]
    assert "node.notice" in kinds
    assert shown["recovery_count"] == 1
    assert "SkuNotAvailable" in str(shown["timeline"])
    assert not azure.metadata_of(first.id).acknowledged
    on_azure.cost_is_the_bill(job, within_s=20)


def test_a_machine_that_finds_no_room_after_all_is_bought_elsewhere(on_azure: OnClouds) -> None:
    azure = on_azure.fakes["azure"]
    azure.faults.late = dict.fromkeys(EAST_US, "ZonalAllocationFailed")
    job = on_azure.launch("latecomer", WORK, resources=ONE_TYPE)
    shown = on_azure.until(job, "SUCCEEDED")
    assert [one.region for one in azure.bought()] == ["eastus"] * 3 + ["northeurope"]
    lost = [event for event in shown["timeline"] if event["kind"] == "attempt.lost"]
    assert {event["reason"] for event in lost} == {"NO_CAPACITY"}
    assert shown["recovery_count"] == 0
    on_azure.cost_is_the_bill(job, within_s=20)


def test_two_nodes_are_evicted_when_the_controller_rehearses_it(on_azure: OnClouds) -> None:
    azure = on_azure.fakes["azure"]
    azure.faults.evicted_after_s = 5.0
    job = on_azure.launch("pair", WORK, num_nodes=2, resources=ONE_TYPE)
    on_azure.controller.until(lambda: on_azure.controller.log(job).count("runs on") == 2, "both nodes")
    azure.faults.capacity = dict.fromkeys(EAST_US, 0)
    on_azure.controller.perdure("jobs", "preempt", job, "--notice", "5")
    shown = on_azure.until(job, "SUCCEEDED")
    assert [(one.region, one.index) for one in azure.bought()].count(("northeurope", 1)) == 1
    assert len(azure.bought()) == 4
    assert shown["recovery_count"] == 1
    on_azure.cost_is_the_bill(job, within_s=20)
