"""Jobs on EC2 with a daemon killed during launches, machines lost without notice, and lost responses."""

from __future__ import annotations

import contextlib
import os
import re
import signal

import psutil
import pytest

from support.helpers.controllers import Controller
from support.worlds.jobs_on_clouds import JobsOnClouds, keys_in, last_step

pytestmark = pytest.mark.long

BUCKET = "ec2-checkpoints"

# Resumes from the bucket and runs until the test ends it; all machines of this computer share that folder.
WORK = """
from=$(ls /ckpt | sed -n 's/^step-0*//p' | sort -n | tail -1)
from=${from:-0}
echo rank $SKYPILOT_NODE_RANK of $SKYPILOT_NUM_NODES begins at $from as $SKYPILOT_TASK_ID
until [ -e /run/perdure/buckets/enough ]; do
  from=$((from + 1))
  if [ "$SKYPILOT_NODE_RANK" = 0 ]; then echo $SKYPILOT_TASK_ID > $(printf /ckpt/step-%04d $from); fi
  sleep 0.5
done
"""


def kill_daemon(controller: Controller) -> None:
    pid = int(re.findall(r'"pid": (\d+)', (controller.home / "controller.json").read_text())[0])
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(10)


@pytest.mark.fuse
@pytest.mark.timeout(400)
def test_two_node_job__survives_kills_and_lost_responses(on_ec2: JobsOnClouds) -> None:
    ec2, controller = on_ec2.fakes["aws"], on_ec2.controller
    storage = {"/ckpt": {"name": BUCKET, "store": "s3", "mode": "MOUNT_CACHED"}}
    ec2.faults.lost_answers["RunInstances"] = 1
    ec2.faults.throttle = 1
    job = on_ec2.launch("storm", WORK, num_nodes=2, file_mounts=storage)
    on_ec2.until_printed(job, "begins at 0")
    controller.until(lambda: last_step(keys_in(ec2.s3, BUCKET)) >= 5, "five steps in the bucket")

    ec2.interrupt(ec2.living()[1].id)  # rank 1, without a word
    controller.until(lambda: controller.job(job)["recovery_count"] == 1, "the first recovery")
    kill_daemon(controller)
    controller.perdure("controller", "start")
    controller.until(lambda: controller.job(job)["status"] == "RUNNING", "the second attempt")
    reached = last_step(keys_in(ec2.s3, BUCKET))
    controller.until(lambda: last_step(keys_in(ec2.s3, BUCKET)) > reached + 5, "more steps in the bucket")

    ec2.interrupt(min(ec2.living(), key=lambda one: one.index).id, notice_s=30)
    controller.until(lambda: controller.job(job)["recovery_count"] == 2, "the second recovery")
    controller.until(lambda: controller.job(job)["status"] == "RUNNING", "the third attempt")
    (controller.home.parent / "aws" / "buckets" / "enough").touch()
    shown = on_ec2.until(job, "SUCCEEDED")
    log = controller.log(job)
    begins = [(int(rank), int(step)) for rank, step in re.findall(r"rank (\d) of 2 begins at (\d+) as", log)]
    assert set(re.findall(r"begins at \d+ as (\S+)", log)) == {shown["task_id"]}
    starts = [step for rank, step in begins if rank == 0]
    assert starts[0] == 0
    assert starts == sorted(starts)
    assert starts[-1] > reached + 5, "what was in the bucket was gone on from"
    assert shown["recovery_count"] == 2
    tokens = [(one.token, one.index) for one in ec2.purchases()]
    assert len(tokens) == len(set(tokens)), "no attempt was bought twice"
    on_ec2.check_cost_matches_bill(job)


@pytest.mark.timeout(400)
def test_killed_daemon__with_a_lost_response_leaves_no_machine(on_ec2: JobsOnClouds) -> None:
    ec2, controller = on_ec2.fakes["aws"], on_ec2.controller
    ec2.faults.lost_answers["RunInstances"] = 3
    job = on_ec2.launch("orphan", "echo ran as $SKYPILOT_TASK_ID")
    controller.until(ec2.living, "a machine in no record")
    kill_daemon(controller)
    controller.perdure("controller", "start")
    on_ec2.until(job, "SUCCEEDED")
    assert len(ec2.purchases()) == 1, "the same token returned the machine of the first launch"
    on_ec2.check_cost_matches_bill(job)
