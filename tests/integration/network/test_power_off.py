"""The controller does not return: nodes finish their task, then power off."""

from __future__ import annotations

import time

import pytest

from integration.network.networked_daemon import Eventually, Rig
from support.helpers.timing import pause

pytestmark = pytest.mark.long
ALONE_S = 4.0


@pytest.fixture(scope="module")
def config() -> str:
    listen = "listen: {host: 10.77.0.1, port: 8700, trust_proxy_tls: true}\n"
    return listen + f"nodes: {{heartbeat_interval_s: 0.5, power_off_after_s: {ALONE_S}}}\n"


def test_orphaned_machine__powers_off_after_its_task_ended(rig: Rig, eventually: Eventually) -> None:
    job = rig.launch("echo begun; until [ -e /tmp/go ]; do sleep 0.02; done; echo over; exit 3")
    machine = rig.machine(job)
    eventually(lambda: rig.log(job) == b"begun\n", "the workload's begin")
    rig.kill()
    pause(3 * ALONE_S)
    assert machine.workload(), "it goes on while it has work"
    machine.signal()
    ended_at = eventually(lambda: "ended: Outcome" in machine.agent_log and time.monotonic(), "the end of the workload")
    kept = machine.disk / "var/lib/perdure"
    assert (kept / "log").read_bytes() == b"begun\nover\n"
    assert '"exit_code": 3' in (kept / "state.json").read_text()
    eventually(lambda: not machine.is_on, "the machine to power itself off")
    took_s = time.monotonic() - ended_at
    print(f"off {took_s:.1f} s after the end, {ALONE_S:g} s asked for")
    assert took_s > ALONE_S - 1

    # The end was never reported, so the task runs again: better twice than not at all.
    rig.start()
    machine = rig.machine(job, generation=2)
    rig.until_status(job, "RUNNING")
    machine.signal()
    assert rig.until_status(job, "FAILED")["recovery_count"] == 1
