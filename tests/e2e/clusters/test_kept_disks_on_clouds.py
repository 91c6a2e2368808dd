"""Clusters on each cloud that can stop machines, with agents that really run: their disks over stop and start."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from perdure.sdk import Resources
from support.helpers.clusters import KEEP_DISKS, Clusters
from support.worlds.jobs_on_clouds import running_jobs_on_clouds

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_disks__are_those_of_the_same_machines_after_stop_and_start(tmp_path: Path, cloud: str) -> None:
    with running_jobs_on_clouds(tmp_path, cloud, config=KEEP_DISKS) as world:
        sky, fake = Clusters(world.controller), world.fakes[cloud]
        ports = [8080] if cloud == "aws" else None
        sky.launch("kept", num_nodes=2, resources=Resources(cpus="2+", infra=cloud, ports=ports))
        sky.output("kept", "echo $SKYPILOT_NODE_RANK > ~/rank", num_nodes=2)
        machines = {one.id for one in world.living()}
        assert len(machines) == 2
        world.controller.perdure("stop", "kept", "--yes")
        assert {one.id for one in fake.living() if one.stopped_at is not None} == machines
        (shown,) = json.loads(world.controller.perdure("status", "kept", "-o", "json").stdout)
        assert (shown["status"], shown["kept_disks"]) == ("STOPPED", 2)
        assert 0 < shown["disk_price_per_hour"] < 0.1
        world.controller.perdure("start", "kept", "--yes")
        assert {one.id for one in fake.living() if one.stopped_at is None} == machines
        if ports:
            endpoints = world.controller.perdure("status", "kept", "--endpoints").stdout
            assert re.fullmatch(r"8080: [0-9.]+:8080\n", endpoints)
        read = sky.output("kept", "cat ~/rank", num_nodes=2)
        assert sorted(line.split()[-1] for line in read.splitlines()) == ["0", "1"]
        world.controller.perdure("stop", "kept", "--yes")
        world.controller.perdure("down", "kept", "--yes")
        assert fake.living() == []
        assert len(fake.purchases()) == 2, "no other machine was launched"


def test_refused_stop__leaves_the_machines_to_power_themselves_off(tmp_path: Path) -> None:
    """The controller's role may launch machines, and not stop them."""
    with running_jobs_on_clouds(tmp_path, "aws", config=KEEP_DISKS) as world:
        sky, fake, perdure = Clusters(world.controller), world.fakes["aws"], world.controller.perdure
        sky.launch("kept", resources=Resources(cpus="2+", infra="aws"))
        sky.output("kept", "echo here > ~/x")
        fake.faults.forbid.add("ec2:StopInstances")
        perdure("stop", "kept", "--yes")
        assert [one.stopped_at is not None for one in fake.living()] == [True]
        perdure("start", "kept", "--yes")
        assert sky.output("kept", "cat ~/x") == "here\n"
        perdure("down", "kept", "--yes")
