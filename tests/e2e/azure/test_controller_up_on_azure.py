"""`perdure controller up` on Azure: the host boots from user data, and launches machines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.sdk.connection import hosted_controller
from support.fakes.azure import FakeAzure
from support.fakes.azure.holdings import ADDRESSES, DISKS, FIREWALLS, INTERFACES
from support.helpers.hosted_controllers import fake_cloud_for_host, laptop_for

pytestmark = [
    pytest.mark.long,  # the machine fetches all that the controller needs
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="the machine makes a user"),
]


@pytest.fixture
def azure(tmp_path: Path) -> Iterator[FakeAzure]:
    with fake_cloud_for_host(FakeAzure, tmp_path) as azure:
        yield azure


def test_controller_on_azure__runs_a_job(azure: FakeAzure, tmp_path: Path) -> None:
    azure.faults.delay_s = 0.5
    azure.faults.identities_listed_slowly = 2
    laptop = laptop_for(azure, tmp_path)
    up = laptop.perdure("controller", "up", "--infra", "azure/eastus", "-y")
    assert "every command on this computer now uses it" in up.stdout
    (machine,) = azure.living()
    reported = laptop.client.controller()
    assert reported["home"] == "/var/lib/perdure"
    record = laptop.record
    assert record.disk == azure.holdings.of(DISKS)[0]["name"]

    done = laptop.perdure(
        "jobs", "launch", "-y", "-n", "there", "--infra", "azure", "--cpus", "2+", "echo ran on $(hostname)"
    )
    (node,) = [one for one in azure.purchases() if one.id != machine.id]
    assert f"ran on {node.id}" in done.stdout
    laptop.until(lambda: [one.id for one in azure.living()] == [machine.id], "the end of the job's machine")

    assert "The controller is down. Its disk" in laptop.perdure("controller", "down", "-y").stdout
    assert not azure.living()
    assert not [one for kind in (INTERFACES, ADDRESSES, FIREWALLS) for one in azure.holdings.of(kind)]
    assert [one["name"] for one in azure.holdings.of(DISKS)] == [record.disk]
    assert "Nothing of it is left" in laptop.perdure("controller", "down", "-y", "--delete-disk").stdout
    assert not azure.holdings.of(DISKS)
    assert hosted_controller.load(laptop.home) is None
