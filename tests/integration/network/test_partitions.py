"""The network between the controller and its nodes breaks, one way or both, without a word."""

from __future__ import annotations

import re
from typing import Any

import pytest

TICKER = "echo pid $$; i=0; while [ $i -lt {steps} ]; do i=$((i+1)); echo tick $i; sleep 0.05; done; echo over"
SAVES_LATE = 'trap "sleep 0.3; echo saved; exit 0" TERM; echo begun; while :; do sleep 0.05; done'


def whole_ticker(steps: int) -> list[bytes]:
    return [b"tick %d" % i for i in range(1, steps + 1)] + [b"over"]


def check_untouched(rig: Any, job: int, steps: int) -> None:
    """The job has ended as if nothing had been, and every byte of its output is there once."""
    ended = rig.until_status(job, "SUCCEEDED", "FAILED", "FAILED_CONTROLLER")
    assert (ended["status"], ended["recovery_count"], len(ended["attempts"])) == ("SUCCEEDED", 0, 1)
    first, *ticks = rig.log(job).splitlines()
    assert re.fullmatch(rb"pid \d+", first)
    assert ticks == whole_ticker(steps)


def silent_in_the_timeline(rig: Any, job: int) -> bool:
    """Whether the controller takes the node for connected no more."""
    return not rig.job(job)["attempts"][0]["nodes"][0]["connected"]


@pytest.mark.parametrize(
    "direction", ["drop_to_controller", "drop_from_controller", pytest.param("cut_off", marks=pytest.mark.long)]
)
def test_both_ends_notice_a_break_in_either_direction_and_the_job_goes_on(
    rig: Any, eventually: Any, direction: str
) -> None:
    job = rig.launch(TICKER.format(steps=100))
    machine = rig.machine(job)
    eventually(lambda: b"tick 5\n" in rig.log(job), "the first ticks")
    getattr(machine, direction)()
    eventually(lambda: silent_in_the_timeline(rig, job), "the controller to notice", 10)
    eventually(lambda: "the connection to the controller ended" in machine.agent_log, "the agent to notice", 10)
    machine.join()
    check_untouched(rig, job, 100)


def test_what_ended_behind_a_partition_is_told_when_it_is_over(rig: Any, eventually: Any) -> None:
    job = rig.launch(TICKER.format(steps=20))
    machine = rig.machine(job)
    eventually(lambda: b"tick 5\n" in rig.log(job), "the first ticks")
    machine.cut_off()
    eventually(lambda: "ended: Outcome" in machine.agent_log, "the end of the workload")
    assert b"over" not in rig.log(job)
    machine.join()
    check_untouched(rig, job, 20)
