"""A notice that arrives only through SQS: the job still saves and migrates in time."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from support.worlds.jobs_on_clouds import running_jobs_on_clouds

pytestmark = pytest.mark.long

QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/perdure"
# In the first region the job never ends; in the other it ends at once.
WORK = """
trap 'echo received SIGTERM; exit 1' TERM
echo runs as $SKYPILOT_TASK_ID
case "$SKYPILOT_CLUSTER_INFO" in *us-east-1*) while :; do sleep 0.1; done ;; esac
echo done
"""
ONE_TYPE = {"infra": "aws", "instance_type": "c6a.large", "use_spot": True}


def warning(id: str) -> str:
    """The event as EventBridge writes it."""
    return json.dumps(
        {
            "source": "aws.ec2",
            "detail-type": "EC2 Spot Instance Interruption Warning",
            "time": datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),  # noqa: TID251
            "detail": {"instance-id": id, "instance-action": "terminate"},
        }
    )


def test_sqs_notice__migrates_the_job(tmp_path: Path) -> None:
    with running_jobs_on_clouds(tmp_path, "aws", interruption_queues=[QUEUE]) as on_ec2:
        ec2 = on_ec2.fakes["aws"]
        sqs = ec2.sqs("us-east-1")
        sqs.create_queue(QueueName="perdure")
        job = on_ec2.launch("listener", WORK, resources=ONE_TYPE)
        on_ec2.until_printed(job, "runs as")
        (first,) = ec2.living()
        ec2.faults.capacity = {f"us-east-1{message}": 0 for message in "abcdef"}
        for text in (warning("i-of-others"), "nonsense", warning(first.id)):
            sqs.send_message(QueueUrl=QUEUE, MessageBody=text)
        shown = on_ec2.until(job, "SUCCEEDED")

        assert [one.region for one in ec2.purchases()] == ["us-east-1", "us-west-2"]
        log = on_ec2.controller.log(job)
        assert "received SIGTERM" in log, log
        assert log.count(f"as {shown['task_id']}\n") == 2
        assert [event["kind"] for event in shown["timeline"]].count("node.notice") == 1
        reported = (on_ec2.controller.home / "controller.log").read_text()
        assert "notices.malformed" in reported
        on_ec2.controller.until(lambda: ec2.calls["sqs:DeleteMessageBatch"], "the messages are deleted")
        on_ec2.check_cost_matches_bill(job)
