"""The daemon is killed repeatedly while machines are preempted; every job finishes once and leaves nothing."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time

import psutil
import pytest

from perdure.sdk.connection.endpoint import ClientError
from support.helpers.controllers import Controller
from support.helpers.timing import pause

JOBS = 8
# The storm lasts until all three are over: a busy machine gets through less in its time.
STORM_S, MIN_KILLS, MIN_PREEMPTIONS = 45.0, 3, 3
SEED = int(os.environ.get("STORM_SEED", "1"))

# All machines share the bucket's folder, so a lock in it detects a second workload independently of the controller.
# One file per step: a file renamed over another may be empty in the bucket if rclone is killed.
WORK = """
mkdir -p /run/perdure/buckets/storm
exec 9>/run/perdure/buckets/storm/$SKYPILOT_MANAGED_JOB_ID.lock
flock -n 9 || echo RUNS-TWICE
n=0
for file in /checkpoint/$SKYPILOT_MANAGED_JOB_ID.*; do
  if read -r saved < $file && [ "$saved" -gt $n ]; then n=$saved; fi
done 2>/dev/null
echo begin at $n $SKYPILOT_TASK_ID
while [ $n -lt 150 ]; do n=$((n+1)); echo step $n; echo $n > /checkpoint/$SKYPILOT_MANAGED_JOB_ID.$n; sleep 0.2; done
"""


def launch(controller: Controller, name: str) -> int:
    task = {"name": name, "run": WORK, "resources": {"use_spot": True}}
    task["file_mounts"] = {"/checkpoint": {"name": "storm-checkpoints", "mode": "MOUNT_CACHED"}}
    return int(controller.client.submit(name, [task], user="", key=name)["job_id"])


def kill_daemon(controller: Controller) -> None:
    pid = int(re.findall(r'"pid": (\d+)', (controller.home / "controller.json").read_text())[0])
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(10)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_kill_storm__loses_nothing_runs_nothing_twice_and_leaves_nothing(controller: Controller) -> None:
    chance = random.Random(SEED)
    ids = [launch(controller, f"storm-{n}") for n in range(JOBS)]
    kills = preemptions = 0
    end = time.monotonic() + STORM_S
    while time.monotonic() < end or kills < MIN_KILLS or preemptions < MIN_PREEMPTIONS:
        pause(chance.uniform(0.2, 2.5))
        if chance.random() < 0.4:
            kill_daemon(controller)
            kills += 1
            controller.perdure("controller", "start")
        else:
            with contextlib.suppress(ClientError):
                running = [j["job_id"] for j in controller.client.jobs(limit=JOBS)["jobs"] if j["status"] == "RUNNING"]
                notice = chance.choice([None, 2.0, 4.0])
                controller.client.preempt(chance.choice(running or ids), node=0, notice_s=notice)
                preemptions += 1
    for job in ids:
        controller.until(lambda job=job: controller.job(job)["status"] == "SUCCEEDED", f"the end of job {job}")  # type: ignore[misc]
    print(f"survived {kills} kills of the daemon and {preemptions} preemptions")
    for job in ids:
        check(controller, job)
    controller.until(lambda: not list(controller.home.glob("local/instances/*/machine")), "the end of every machine")


def check(controller: Controller, job: int) -> None:
    shown, log = controller.job(job), controller.log(job)
    assert "RUNS-TWICE" not in log
    begins = re.findall(r"begin at (\d+) (\S+)", log)
    assert {task_id for _, task_id in begins} == {shown["task_id"]}, "one task ID"
    starts = [int(n) for n, _ in begins]
    assert starts == sorted(starts), "what was in the bucket is never lost again"
    assert log.rstrip().split("step ")[-1].startswith("150")
    lost = [e for e in shown["timeline"] if e["kind"] == "attempt.lost"]
    assert shown["recovery_count"] <= len(lost)
    simulated = [e for e in shown["timeline"] if e["kind"] in ("job.preemption_simulated", "node.notice")]
    assert bool(lost) <= bool(simulated), f"job {job} recovered without a preemption"
    for part in log.split("--- attempt ")[1:]:
        steps = [int(n) for n in re.findall(r"^step (\d+)$", part, re.M)]
        assert not steps or steps == list(range(steps[0], steps[0] + len(steps))), "no line lost or twice"
