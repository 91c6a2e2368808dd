"""The controller stays away: nodes go on until their task has ended, then cost nothing more."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytestmark = pytest.mark.long
ALONE_S = 4.0


@pytest.fixture(scope="module")
def config() -> str:
    listen = "listen: {host: 10.77.0.1, port: 8700, plain_http_behind_proxy: true}\n"
    return listen + f"nodes: {{beat_s: 0.5, power_off_after_s: {ALONE_S}}}\n"


def test_a_machine_powers_itself_off_after_its_task_has_ended_and_not_before(rig: Any, eventually: Any) -> None:
    job = rig.launch("echo begun; until [ -e /tmp/go ]; do sleep 0.02; done; echo over; exit 3")
    machine = rig.machine(job)
    eventually(lambda: rig.log(job) == b"begun\n", "the workload's begin")
    rig.kill()
    until = time.monotonic() + 3 * ALONE_S
    eventually(lambda: time.monotonic() >= until, "three times the wait after an end")
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

    # What ended unheard is not known to have ended: better twice than not at all.
    rig.start()
    machine = rig.machine(job, generation=2)
    rig.until_status(job, "RUNNING")
    machine.signal()
    assert rig.until_status(job, "FAILED")["recovery_count"] == 1
