"""A controller that dies at each failpoint of clusters: no job is lost, and none runs twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure.controller.runtime.failpoints import CLUSTER_FAILPOINTS, VARIABLE
from support.helpers.clusters import CONFIG, KEEP_DISKS, Clusters, running_clusters

IN_SHORT = ("cluster.created", "slot.granted:2")


def pid_of(sky: Clusters) -> int:
    return int(json.loads((sky.controller.home / "controller.json").read_text())["pid"])


def live_through(home: Path, point: str) -> None:
    """Launch, run jobs, stop, start and end a cluster, while the controller dies at `point`.

    Its disks are kept, unless the point is one of saving the home instead.
    """
    environ = {VARIABLE: point}
    config = CONFIG if point.startswith("home.") else CONFIG + KEEP_DISKS
    with running_clusters(home, config, environ=environ) as sky:
        begun_with = pid_of(sky)
        environ.clear()  # the next daemon does not die
        sky.launch("dev")
        line = "echo $SKYPILOT_INTERNAL_JOB_ID >> ~/ran.txt"
        numbers = [sky.exec("dev", line) for _ in range(3)]
        for number in numbers:
            assert sky.until("dev", number)["status"] == "SUCCEEDED"
        assert sorted(map(int, sky.output("dev", "cat ~/ran.txt").split())) == numbers
        sky.controller.perdure("stop", "dev", "--yes")
        assert sky.status("dev") == "STOPPED"
        sky.controller.until(sky.no_machines, "the end of every machine")
        sky.controller.perdure("start", "dev", "--yes")
        assert sorted(map(int, sky.output("dev", "cat ~/ran.txt").split())) == numbers
        sky.controller.perdure("down", "dev", "--yes")
        assert sky.status("dev") == "DOWN"
        sky.controller.until(lambda: sky.no_machines() and not sky.kept_disks(), "the end of every machine and disk")
        assert sky.job("dev", numbers[0])["status"] == "SUCCEEDED"
        assert pid_of(sky) != begun_with, f"the controller did not die at {point}"
        assert not sky.controller.errors()


@pytest.mark.slow
@pytest.mark.parametrize("point", IN_SHORT)
def test_cluster__survives_the_death_of_its_controller(tmp_path: Path, point: str) -> None:
    live_through(tmp_path / "home", point)


@pytest.mark.long
@pytest.mark.parametrize("point", [point for point in CLUSTER_FAILPOINTS if point not in IN_SHORT])
def test_cluster__survives_a_death_at_any_failpoint(tmp_path: Path, point: str) -> None:
    live_through(tmp_path / "home", point)
