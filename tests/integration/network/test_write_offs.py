"""A node that is silent for longer than is borne: at most one workload, and none that was given up lives on."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

# The bucket's folder is this computer's own, so a lock in it is seen by every machine: it judges, not the controller.
ALONE = """
mkdir -p /run/perdure/buckets/judge
exec 9>/run/perdure/buckets/judge/$SKYPILOT_MANAGED_JOB_ID.lock
flock -n 9 || echo RUNS-TWICE
echo begun; until [ -e /tmp/go ]; do sleep 0.02; done; echo over
"""

# Out of sight in every way: another session, another parent, deaf to SIGTERM.
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
listen: {host: 10.77.0.1, port: 8700, plain_http_behind_proxy: true}
limits: {silent_s: 3, drain_s: 2, recheck_s: 1}
nodes: {beat_s: 0.5}
"""


def recovered(rig: Any, job: int) -> dict[str, Any]:
    """The job once its second attempt runs."""
    machine = rig.machine(job, generation=2)
    rig.until_status(job, "RUNNING")
    machine.signal()
    return dict(rig.until_status(job, "SUCCEEDED"))


def test_a_node_that_stays_silent_though_its_machine_lives_is_replaced_and_not_before_it_is_ended(
    rig: Any, eventually: Any
) -> None:
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


def test_a_node_that_was_written_off_by_mistake_kills_all_within_5_s_of_hearing_so(rig: Any, eventually: Any) -> None:
    job = rig.launch(HIDERS)
    machine = rig.machine(job)
    eventually(lambda: b"begun" in rig.log(job), "the workload's begin")
    eventually(lambda: len(machine.workload()) >= 7, "all that hide")
    machine.cut_off()
    rig.forget(machine)
    eventually(lambda: rig.job(job)["generation"] == 2, "the second attempt")
    assert machine.workload(), "it can not have heard yet"
    machine.join()
    eventually(lambda: "directive: stop" in machine.agent_log or not machine.is_on, "the node to hear of it")
    heard_at = time.monotonic()
    eventually(lambda: not machine.workload(), "the workload's death", 5)
    print(f"dead {time.monotonic() - heard_at:.2f} s after it heard")
    eventually(lambda: not machine.is_on, "the machine to power itself off")
    assert re.search(r"told to stop: ending everything", machine.agent_log)
    rig.client.cancel(ids=[job], grace_s=0)
