"""A node that is silent for longer than `node_timeout_s`: at most one workload runs, and an abandoned one is killed."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from integration.network.networked_daemon import Eventually, Rig

pytestmark = pytest.mark.long

# All machines share the bucket's folder, so a lock in it detects a second workload independently of the controller.
ALONE = """
mkdir -p /run/perdure/buckets/judge
exec 9>/run/perdure/buckets/judge/$SKYPILOT_MANAGED_JOB_ID.lock
flock -n 9 || echo RUNS-TWICE
echo begun; until [ -e /tmp/go ]; do sleep 0.02; done; echo over
"""

# Processes that hide in every way: another session, another parent, SIGTERM ignored.
HIDERS = """
python3 -c '
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
        os._exit(0)
time.sleep(600)
' &
trap '' TERM; echo begun; while :; do sleep 1; done
"""


@pytest.fixture(scope="module")
def config() -> str:
    return """
listen: {host: 10.77.0.1, port: 8700, trust_proxy_tls: true}
timeouts: {node_timeout_s: 3, drain_timeout_s: 2, describe_interval_s: 1}
nodes: {heartbeat_interval_s: 0.5}
"""


def recovered(rig: Rig, job: int) -> dict[str, Any]:
    """Let the second attempt finish; return the job."""
    machine = rig.machine(job, generation=2)
    rig.until_status(job, "RUNNING")
    machine.signal()
    return dict(rig.until_status(job, "SUCCEEDED"))


def test_silent_node__is_replaced_after_its_machine_ended(rig: Rig, eventually: Eventually) -> None:
    job = rig.launch(ALONE)
    machine = rig.machine(job)
    eventually(lambda: rig.log(job) == b"begun\n", "the workload's begin")
    machine.cut_off()
    ended = recovered(rig, job)
    assert ended["recovery_count"] == 1
    assert b"RUNS-TWICE" not in rig.log(job, generation=2)
    assert not machine.is_on, "its cloud was asked to end it, which needs no network to the node"
    lost = [e["reason"] for e in ended["timeline"] if e["kind"] == "attempt.lost"]
    assert lost == ["UNREACHABLE"]


def test_written_off_node__kills_its_workload_within_5_s(rig: Rig, eventually: Eventually) -> None:
    job = rig.launch(HIDERS)
    machine = rig.machine(job)
    eventually(lambda: b"begun" in rig.log(job), "the workload's begin")
    eventually(lambda: len(machine.workload()) >= 7, "all that hide")
    machine.cut_off()
    rig.forget(machine)
    eventually(lambda: rig.job(job)["generation"] == 2, "the second attempt")
    assert machine.workload(), "it cannot have received the directive yet"
    machine.join()
    eventually(lambda: "directive: stop" in machine.agent_log or not machine.is_on, "the node to receive it")
    received_at = time.monotonic()
    eventually(lambda: not machine.workload(), "the workload's death", 5)
    print(f"dead {time.monotonic() - received_at:.2f} s after it received the message")
    eventually(lambda: not machine.is_on, "the machine to power itself off")
    assert re.search(r"stopping: ending everything", machine.agent_log)
    rig.client.cancel(ids=[job], grace_s=0)
