"""Jobs on Compute Engine, from the daemon's first call to the bill."""

from __future__ import annotations

import contextlib
import os
import re
import signal

import psutil
import pytest

from perdure.recovery.market.view import Market
from support.worlds.jobs_on_clouds import JobsOnClouds

# In the first region the job never ends; in the other it ends at once.
WORK = """
trap 'echo received SIGTERM; exit 1' TERM
echo runs on $(hostname) as $SKYPILOT_TASK_ID rank $SKYPILOT_NODE_RANK
case "$SKYPILOT_CLUSTER_INFO" in *us-central1*) while :; do sleep 0.1; done ;; esac
echo done
"""
ONE_TYPE = {"infra": "gcp", "instance_type": "n2-standard-2", "use_spot": True}
FIRST_REGION = [f"us-central1-{message}" for message in "abcf"]


@pytest.mark.slow
def test_preempted_job__finishes_where_there_is_capacity(on_gce: JobsOnClouds) -> None:
    gce = on_gce.fakes["gcp"]
    checked = on_gce.controller.perdure("check", "gcp").stdout
    assert "gcp: usable\n  regions: us-central1, us-east4\n" in checked
    job = on_gce.launch("wanderer", WORK, resources=ONE_TYPE)
    on_gce.until_printed(job, "runs on")
    (first,) = gce.living()
    full = [*FIRST_REGION, "us-east4-a"]
    gce.faults.capacity = dict.fromkeys(full, 0)
    gce.interrupt(first.id)
    shown = on_gce.until(job, "SUCCEEDED")

    first, second = gce.purchases()
    assert (first.region, second.region) == ("us-central1", "us-east4")
    assert second.zone not in full
    assert first.market is second.market is Market.SPOT
    log = on_gce.controller.log(job)
    assert "received SIGTERM" in log, log
    assert log.count(f"as {shown['task_id']} rank 0\n") == 2
    assert f"runs on {second.id.partition('/')[2]}" in log
    kinds = [event["kind"] for event in shown["timeline"]]
    assert "node.notice" in kinds
    assert shown["recovery_count"] == 1
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in str(shown["timeline"])
    on_gce.check_cost_matches_bill(job)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_two_node_job__survives_a_simulated_interruption_and_a_lost_response(on_gce: JobsOnClouds) -> None:
    """`jobs preempt` makes Google take one machine; the other is terminated, and both nodes continue elsewhere."""
    gce, controller = on_gce.fakes["gcp"], on_gce.controller
    gce.faults.lost_answers["instances.bulkInsert"] = 1
    gce.faults.operation_s = 1.0
    gce.faults.soft_off_s = 15.0
    job = on_gce.launch("pair", WORK, resources=ONE_TYPE, num_nodes=2)
    on_gce.until_printed(job, "rank 1")
    assert len(gce.purchases()) == 2, "the same token returned the machine of the first launch"
    gce.faults.capacity = dict.fromkeys(FIRST_REGION, 0)
    controller.perdure("jobs", "preempt", str(job), "--notice", "15")
    shown = on_gce.until(job, "SUCCEEDED")
    assert gce.calls["instances.simulateMaintenanceEvent"] == 1
    assert shown["recovery_count"] == 1
    assert [one.region for one in gce.purchases()] == ["us-central1"] * 2 + ["us-east4"] * 2
    tokens = [(one.token, one.index) for one in gce.purchases()]
    assert len(tokens) == len(set(tokens)), "no attempt was bought twice"
    on_gce.check_cost_matches_bill(job)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_killed_daemon__with_a_lost_response_leaves_no_machine(on_gce: JobsOnClouds) -> None:
    gce, controller = on_gce.fakes["gcp"], on_gce.controller
    gce.faults.lost_answers["instances.bulkInsert"] = 3
    job = on_gce.launch("orphan", "echo ran as $SKYPILOT_TASK_ID", resources=ONE_TYPE)
    controller.until(gce.living, "a machine in no record")
    pid = int(re.findall(r'"pid": (\d+)', (controller.home / "controller.json").read_text())[0])
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(10)
    controller.perdure("controller", "start")
    on_gce.until(job, "SUCCEEDED")
    assert len(gce.purchases()) == 1, "the same token returned the machine of the first launch"
    on_gce.check_cost_matches_bill(job)
