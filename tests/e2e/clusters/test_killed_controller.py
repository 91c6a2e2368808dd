"""A controller that is killed: queue and logs are intact, every job runs once, and `down` leaves nothing."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from perdure.sdk.connection.discovery import is_controller
from support.helpers.clusters import Clusters, running_clusters


def kill(sky: Clusters) -> None:
    pid = int(json.loads((sky.controller.home / "controller.json").read_text())["pid"])
    os.kill(pid, signal.SIGKILL)
    sky.controller.until(lambda: not is_controller(pid), "the controller's death")


@pytest.mark.slow
def test_killed_controller__runs_every_job_once(tmp_path: Path) -> None:
    with running_clusters(tmp_path / "home") as sky:
        sky.launch("dev", resources=None)
        line = "echo $SKYPILOT_INTERNAL_JOB_ID >> ~/ran.txt"
        first = sky.exec("dev", f"{line}; echo before; while [ ! -e ~/go ]; do sleep 0.05; done; echo after")
        others = [sky.exec("dev", line) for _ in range(4)]
        sky.until("dev", first, "RUNNING")
        kill(sky)
        sky.controller.perdure("controller", "start")
        sky.output("dev", "touch ~/go")
        numbers = [first, *others]
        for number in numbers:
            assert sky.until("dev", number)["status"] == "SUCCEEDED"
        assert sky.log("dev", first) == "before\nafter\n"
        assert sorted(map(int, sky.output("dev", "cat ~/ran.txt").split())) == numbers
        kill(sky)
        sky.controller.perdure("controller", "start")
        sky.controller.perdure("down", "dev", "--yes")
        sky.controller.until(sky.no_machines, "the end of every machine")
        assert not sky.controller.errors()
