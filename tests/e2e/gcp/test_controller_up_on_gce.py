"""`perdure controller up` on Compute Engine: its machine boots from user data, and buys machines itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_gce import FakeGce
from laptops import a_cloud, a_laptop
from perdure.sdk import hosted

pytestmark = [
    pytest.mark.long,  # the machine fetches all that the controller needs
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="the machine makes a user"),
]


@pytest.fixture
def gce(tmp_path: Path) -> Iterator[FakeGce]:
    with a_cloud(FakeGce, tmp_path) as gce:
        yield gce


def test_a_controller_on_compute_engine_runs_a_job_there(gce: FakeGce, tmp_path: Path) -> None:
    gce.faults.operation_s = 0.5
    gce.faults.accounts_told_slowly = 2
    laptop = a_laptop(gce, tmp_path)
    up = laptop.perdure("controller", "up", "--infra", "gcp/us-central1")
    assert "every command here goes to it now" in up.stdout
    (machine,) = gce.living()
    told = laptop.client.controller()
    assert told["home"] == "/var/lib/perdure"
    record = laptop.record
    assert record.disk == gce.holdings.of("disks")[0]["name"]

    done = laptop.perdure(
        "jobs", "launch", "-y", "-n", "there", "--infra", "gcp", "--cpus", "2+", "echo ran on $(hostname)"
    )
    (node,) = [one for one in gce.bought() if one.id != machine.id]
    assert f"ran on {node.id.partition('/')[2]}" in done.stdout
    laptop.until(lambda: [one.id for one in gce.living()] == [machine.id], "the end of the job's machine")

    assert "What stays is its disk" in laptop.perdure("controller", "down", "-y").stdout
    assert not gce.living()
    assert not gce.holdings.of("addresses") + gce.holdings.of("firewalls")
    assert [one["name"] for one in gce.holdings.of("disks")] == [record.disk]
    assert "Nothing of it is left" in laptop.perdure("controller", "down", "-y", "--delete-disk").stdout
    assert not gce.holdings.of("disks")
    assert hosted.read(laptop.home) is None
