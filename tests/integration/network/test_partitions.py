"""The network between the controller and its nodes breaks silently, in one direction or both."""

from __future__ import annotations

import re

import pytest

from integration.network.networked_daemon import Eventually, Rig

pytestmark = pytest.mark.long

TICKER = "echo pid $$; i=0; while [ $i -lt {steps} ]; do i=$((i+1)); echo tick $i; sleep 0.05; done; echo over"
SAVES_LATE = 'trap "sleep 0.3; echo saved; exit 0" TERM; echo begun; while :; do sleep 0.05; done'


def whole_ticker(steps: int) -> list[bytes]:
    return [b"tick %d" % i for i in range(1, steps + 1)] + [b"over"]


def check_untouched(rig: Rig, job: int, steps: int) -> None:
    """Check that the job ended undisturbed, and that its log has every byte once."""
    ended = rig.until_status(job, "SUCCEEDED", "FAILED", "FAILED_CONTROLLER")
    assert (ended["status"], ended["recovery_count"], len(ended["attempts"])) == ("SUCCEEDED", 0, 1)
    first, *ticks = rig.log(job).splitlines()
    assert re.fullmatch(rb"pid \d+", first)
    assert ticks == whole_ticker(steps)


def silent_in_the_timeline(rig: Rig, job: int) -> bool:
    """Whether the controller considers the node disconnected."""
    return not rig.job(job)["attempts"][0]["nodes"][0]["connected"]


@pytest.mark.parametrize(
    "direction", ["drop_to_controller", "drop_from_controller", pytest.param("cut_off", marks=pytest.mark.long)]
)
def test_partition__is_detected_by_both_ends_and_the_job_continues(
    rig: Rig, eventually: Eventually, direction: str
) -> None:
    job = rig.launch(TICKER.format(steps=100))
    machine = rig.machine(job)
    eventually(lambda: b"tick 5\n" in rig.log(job), "the first ticks")
    getattr(machine, direction)()
    eventually(lambda: silent_in_the_timeline(rig, job), "the controller to notice", 10)
    eventually(lambda: "the connection to the controller ended" in machine.agent_log, "the agent to notice", 10)
    machine.join()
    check_untouched(rig, job, 100)


def test_partition__workload_end_is_reported_afterwards(rig: Rig, eventually: Eventually) -> None:
    job = rig.launch(TICKER.format(steps=20))
    machine = rig.machine(job)
    eventually(lambda: b"tick 5\n" in rig.log(job), "the first ticks")
    machine.cut_off()
    eventually(lambda: "ended: Outcome" in machine.agent_log, "the end of the workload")
    assert b"over" not in rig.log(job)
    machine.join()
    check_untouched(rig, job, 20)
