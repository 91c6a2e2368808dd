"""On-demand clusters keep the disks of their machines while they are stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.sdk import Resources
from support.helpers.clusters import CONFIG, KEEP_DISKS, Clusters, running_clusters

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    with running_clusters(tmp_path_factory.mktemp("home"), CONFIG + KEEP_DISKS) as one:
        yield one


def one(sky: Clusters, name: str) -> dict[str, Any]:
    (cluster,) = json.loads(sky.controller.perdure("status", name, "-o", "json").stdout)
    return dict(cluster)


def test_disks__are_those_of_the_same_machines_after_stop_and_start(sky: Clusters) -> None:
    perdure = sky.controller.perdure
    sky.launch("kept", num_nodes=2, resources=Resources(cpus=1, infra="local"))
    written = (
        "echo $SKYPILOT_NODE_RANK > ~/rank; mkdir -p ~/venv/bin /opt/tool; echo $SKYPILOT_NODE_RANK > /opt/tool/it"
    )
    sky.output("kept", written, num_nodes=2)
    before = sky.machines()
    assert (len(before), one(sky, "kept")["kept_disks"]) == (2, 0)
    for _ in range(2):
        perdure("stop", "kept", "--yes")
        assert sky.status("kept") == "STOPPED"
        assert (sky.machines(), sky.kept_disks()) == (set(), before)
        assert one(sky, "kept")["kept_disks"] == 2
        assert "kept: its 2 disks are kept for nothing; `perdure start kept`" in perdure("status").stdout
        perdure("start", "kept", "--yes")
        assert (sky.machines(), sky.kept_disks()) == (before, set())
        read = sky.output("kept", "cat ~/rank /opt/tool/it", num_nodes=2)
        assert sorted(line.split()[-1] for line in read.splitlines()) == ["0", "0", "1", "1"]
    assert one(sky, "kept")["home"] is None, "nothing is copied to a bucket"
    perdure("stop", "kept", "--yes")
    perdure("down", "kept", "--yes")
    assert (sky.machines(), sky.kept_disks() & before) == (set(), set())


def test_start__right_after_stop_waits_for_the_disks(sky: Clusters) -> None:
    sky.launch("quick", resources=Resources(cpus=1, infra="local"))
    sky.output("quick", "echo here > ~/x")
    sky.controller.perdure("stop", "quick", "--yes", "--async")
    sky.controller.perdure("start", "quick", "--yes")
    assert sky.output("quick", "cat ~/x") == "here\n"
    sky.controller.perdure("down", "quick", "--yes")


def test_spot_machines__keep_no_disk(sky: Clusters) -> None:
    sky.launch("cheap", resources=Resources(cpus=1, use_spot=True, infra="local"))
    sky.controller.perdure("stop", "cheap", "--yes")
    assert (one(sky, "cheap")["kept_disks"], sky.kept_disks()) == (0, set())
    sky.controller.perdure("down", "cheap", "--yes")
