"""Minutes without a controller, and random network failures and kills."""

from __future__ import annotations

import hashlib
import os
import random
import time

import pytest

from integration.network.machines import Machine
from integration.network.networked_daemon import Eventually, Rig
from support.helpers.timing import pause

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SEED = int(os.environ.get("STORM_SEED", "1"))
STORM_S = 75.0
JOBS = 3
AWAY_S = 200.0  # more than the 180 s for which a node may be silent, by default
TALKER = """
echo begin $$
i=0; until [ -e /tmp/go ]; do i=$((i+1)); echo step $i; sleep 0.02; done; echo over
"""


@pytest.fixture(scope="module")
def config() -> str:
    """The defaults, with shorter heartbeats, which detect a broken connection sooner, and a shorter final wait."""
    listen = "listen: {host: 10.77.0.1, port: 8700, trust_proxy_tls: true}\n"
    return listen + "nodes: {heartbeat_interval_s: 0.5, power_off_after_s: 240}\n"


def begun(rig: Rig, eventually: Eventually) -> tuple[int, Machine]:
    job = rig.launch(TALKER)
    machine = rig.machine(job)
    eventually(lambda: b"step 3\n" in rig.log(job), "the first steps")
    return job, machine


def check(rig: Rig, job: int) -> None:
    """Check that the job ended undisturbed, and that its log has each line once, in order."""
    ended = rig.until_status(job, "SUCCEEDED", "FAILED", "FAILED_CONTROLLER")
    assert (ended["status"], ended["recovery_count"], len(ended["attempts"])) == ("SUCCEEDED", 0, 1)
    begin, *steps, over = rig.log(job).splitlines()
    assert begin.startswith(b"begin ")
    assert steps == [b"step %d" % n for n in range(1, len(steps) + 1)]
    assert over == b"over"


def test_network_storm__costs_no_restart_and_no_log_line(rig: Rig, eventually: Eventually) -> None:
    chance = random.Random(SEED)
    running = [begun(rig, eventually) for _ in range(JOBS)]
    survived = dict.fromkeys(("partitions", "one-way partitions", "outages", "kills"), 0)
    end = time.monotonic() + STORM_S
    while time.monotonic() < end:
        length_s = chance.uniform(0.3, 6.0)
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
        pause(length_s)
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


def test_controller_outage__of_minutes_changes_nothing(rig: Rig, eventually: Eventually) -> None:
    job, machine = begun(rig, eventually)
    rig.stop()
    pause(AWAY_S)
    rig.start()
    machine.signal()
    check(rig, job)
    print(f"survived {AWAY_S:.0f} s without a controller; {hashlib.sha256(rig.log(job)).hexdigest()[:12]}")
