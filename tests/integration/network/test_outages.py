"""The controller is away for longer than `node_timeout_s`; the workload is not affected."""

from __future__ import annotations

import hashlib

import pytest

from integration.network.machines import Machine
from integration.network.networked_daemon import Eventually, Rig
from support.helpers.timing import pause

pytestmark = pytest.mark.long

AWAY_S = 10.0  # a node may be silent for 8
LINES = 200_000
TALKER = f"""
echo begun; until [ -e /tmp/go ]; do sleep 0.02; done
seq -f 'line %010.0f of the many that are printed while nobody listens' 1 {LINES}
exit 3
"""


def whole_log() -> bytes:
    text = b"line %010d of the many that are printed while nobody listens\n"
    return b"begun\n" + b"".join(text % n for n in range(1, LINES + 1))


def take_away(rig: Rig, how: str) -> None:
    {"frozen": rig.freeze, "killed": rig.kill, "stopped": rig.stop}[how]()


def bring_back(rig: Rig, how: str) -> None:
    {"frozen": rig.thaw, "killed": rig.start, "stopped": rig.start}[how]()


def scripts(machine: Machine) -> set[int]:
    """The processes of `run` itself, without children, which look alike until they call exec."""
    parents = {p.pid: p.ppid() for p in machine.workload() if p.cmdline()[-1:] and p.cmdline()[-1].endswith("run.sh")}
    return {pid for pid, parent in parents.items() if parent not in parents}


@pytest.mark.parametrize(
    "how", ["stopped", *(pytest.param(how, marks=pytest.mark.long) for how in ("frozen", "killed"))]
)
def test_controller_outage__logs_and_exit_code_arrive_afterwards(rig: Rig, eventually: Eventually, how: str) -> None:
    job = rig.launch(TALKER)
    machine = rig.machine(job)
    eventually(lambda: rig.log(job) == b"begun\n", "the workload's begin")
    before = scripts(machine)
    take_away(rig, how)
    pause(AWAY_S)
    assert scripts(machine) == before
    assert len(before) == 1
    machine.signal()
    eventually(lambda: "ended: Outcome" in machine.agent_log, "the end of the workload")
    bring_back(rig, how)
    ended = rig.until_status(job, "FAILED")
    assert (ended["recovery_count"], len(ended["attempts"])) == (0, 1)
    assert "exited with code 3" in ended["message"]
    assert hashlib.sha256(rig.log(job)).hexdigest() == hashlib.sha256(whole_log()).hexdigest()
