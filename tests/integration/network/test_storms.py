"""Long and wild: minutes without a controller, machines left alone for good, cables that break at random."""

from __future__ import annotations

import hashlib
import os
import random
import time
from typing import Any

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SEED = int(os.environ.get("STORM_SEED", "1"))
STORM_S = 75.0
JOBS = 3
AWAY_S = 200.0  # more than the 180 s for which a node may be silent, as long as nobody sets another limit
TALKER = """
echo begin $$
i=0; until [ -e /tmp/go ]; do i=$((i+1)); echo step $i; sleep 0.02; done; echo over
"""


@pytest.fixture(scope="module")
def config() -> str:
    """As delivered, but for beats that make a broken line known sooner, and a last wait that can be waited for."""
    listen = "listen: {host: 10.77.0.1, port: 8700, plain_http_behind_proxy: true}\n"
    return listen + "nodes: {beat_s: 0.5, power_off_after_s: 240}\n"


def begun(rig: Any, eventually: Any) -> tuple[int, Any]:
    job = rig.launch(TALKER)
    machine = rig.machine(job)
    eventually(lambda: b"step 3\n" in rig.log(job), "the first steps")
    return job, machine


def check(rig: Any, job: int) -> None:
    """It ended as if nothing had been, and each line is there once, in order."""
    ended = rig.until_status(job, "SUCCEEDED", "FAILED", "FAILED_CONTROLLER")
    assert (ended["status"], ended["recovery_count"], len(ended["attempts"])) == ("SUCCEEDED", 0, 1)
    begin, *steps, over = rig.log(job).splitlines()
    assert begin.startswith(b"begin ")
    assert steps == [b"step %d" % n for n in range(1, len(steps) + 1)]
    assert over == b"over"


def test_a_storm_of_broken_lines_and_killed_daemons_costs_no_job_a_restart_or_a_line(rig: Any, eventually: Any) -> None:
    chance = random.Random(SEED)
    running = [begun(rig, eventually) for _ in range(JOBS)]
    survived = dict.fromkeys(("partitions", "one-way partitions", "outages", "kills"), 0)
    end = time.monotonic() + STORM_S
    while time.monotonic() < end:
        until = time.monotonic() + chance.uniform(0.3, 6.0)
        _, machine = chance.choice(running)
        match chance.choice(["partitions", "one-way partitions", "one-way partitions", "outages", "kills"]):
            case "partitions" as what:
                machine.cut_off()
            case "one-way partitions" as what:
                chance.choice([machine.drop_to_controller, machine.drop_from_controller])()
            case "outages" as what:
                rig.freeze()
            case what:
                rig.kill()
        eventually(lambda until=until: time.monotonic() >= until, "the end of it")
        if what == "outages":
            rig.thaw()
        elif what == "kills":
            rig.start()
        elif chance.random() < 0.7:  # else the next trouble comes on top of this one
            machine.join()
        survived[what] += 1
    for _, machine in running:
        machine.join()
        machine.signal()
    for job, _ in running:
        check(rig, job)
    print("survived " + ", ".join(f"{count} {what}" for what, count in survived.items()))
    assert all(survived.values())


def test_minutes_without_a_controller_change_nothing(rig: Any, eventually: Any) -> None:
    job, machine = begun(rig, eventually)
    rig.stop()
    back_at = time.monotonic() + AWAY_S
    eventually(lambda: time.monotonic() >= back_at, "the time away", 2 * AWAY_S)
    rig.start()
    machine.signal()
    check(rig, job)
    print(f"survived {AWAY_S:.0f} s without a controller; {hashlib.sha256(rig.log(job)).hexdigest()[:12]}")
