"""Jobs on EC2, from the daemon's first call to the bill."""

from __future__ import annotations

import pytest

from perdure.recovery.market.view import Market
from support.worlds.jobs_on_clouds import JobsOnClouds

pytestmark = pytest.mark.long

# In the first region the job never ends; in the other it ends at once.
WORK = """
trap 'echo received SIGTERM; exit 1' TERM
echo runs on $(hostname) as $SKYPILOT_TASK_ID
case "$SKYPILOT_CLUSTER_INFO" in *us-east-1*) while :; do sleep 0.1; done ;; esac
echo done
"""
ONE_TYPE = {"infra": "aws", "instance_type": "c6a.large", "use_spot": True}


def test_preempted_job__finishes_where_there_is_capacity(on_ec2: JobsOnClouds) -> None:
    ec2 = on_ec2.fakes["aws"]
    job = on_ec2.launch("wanderer", WORK, resources=ONE_TYPE)
    on_ec2.until_printed(job, "runs on")
    (first,) = ec2.living()
    full = ["us-west-2a", *(f"us-east-1{message}" for message in "abcdef")]
    ec2.faults.capacity = dict.fromkeys(full, 0)
    ec2.interrupt(first.id, notice_s=15)
    shown = on_ec2.until(job, "SUCCEEDED")

    first, second = ec2.purchases()
    assert (first.zone, second.region) == ("us-east-1a", "us-west-2")
    assert second.zone not in full
    assert first.market is second.market is Market.SPOT
    log = on_ec2.controller.log(job)
    assert "received SIGTERM" in log, log
    assert log.count(f"as {shown['task_id']}\n") == 2
    assert f"runs on {second.id}" in log
    kinds = [event["kind"] for event in shown["timeline"]]
    assert "node.notice" in kinds
    assert shown["recovery_count"] == 1
    assert "InsufficientInstanceCapacity" in str(shown["timeline"])

    on_ec2.check_cost_matches_bill(job)
