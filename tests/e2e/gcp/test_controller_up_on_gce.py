"""`perdure controller up` on Compute Engine: the host boots from user data, and launches machines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.sdk.connection import hosted_controller
from support.fakes.gce import FakeGce
from support.helpers.hosted_controllers import fake_cloud_for_host, laptop_for

pytestmark = [
    pytest.mark.long,  # the machine fetches all that the controller needs
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="the machine makes a user"),
]


@pytest.fixture
def gce(tmp_path: Path) -> Iterator[FakeGce]:
    with fake_cloud_for_host(FakeGce, tmp_path) as gce:
        yield gce


def test_controller_on_gce__runs_a_job(gce: FakeGce, tmp_path: Path) -> None:
    gce.faults.operation_s = 0.5
    gce.faults.accounts_listed_slowly = 2
    laptop = laptop_for(gce, tmp_path)
    up = laptop.perdure("controller", "up", "--infra", "gcp/us-central1", "-y")
    assert "every command on this computer now uses it" in up.stdout
    (machine,) = gce.living()
    reported = laptop.client.controller()
    assert reported["home"] == "/var/lib/perdure"
    record = laptop.record
    assert record.disk == gce.holdings.of("disks")[0]["name"]

    done = laptop.perdure(
        "jobs", "launch", "-y", "-n", "there", "--infra", "gcp", "--cpus", "2+", "echo ran on $(hostname)"
    )
    (node,) = [one for one in gce.purchases() if one.id != machine.id]
    assert f"ran on {node.id.partition('/')[2]}" in done.stdout
    laptop.until(lambda: [one.id for one in gce.living()] == [machine.id], "the end of the job's machine")

    assert "The controller is down. Its disk" in laptop.perdure("controller", "down", "-y").stdout
    assert not gce.living()
    assert not gce.holdings.of("addresses") + gce.holdings.of("firewalls")
    assert [one["name"] for one in gce.holdings.of("disks")] == [record.disk]
    assert "Nothing of it is left" in laptop.perdure("controller", "down", "-y", "--delete-disk").stdout
    assert not gce.holdings.of("disks")
    assert hosted_controller.load(laptop.home) is None
