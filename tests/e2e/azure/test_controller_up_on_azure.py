"""`perdure controller up` on Azure: its machine boots from user data, and buys machines itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_azure import FakeAzure
from fake_azure.holdings import ADDRESSES, DISKS, FIREWALLS, INTERFACES
from laptops import a_cloud, a_laptop
from perdure.sdk import hosted

pytestmark = [
    pytest.mark.long,  # the machine fetches all that the controller needs
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="the machine makes a user"),
]


@pytest.fixture
def azure(tmp_path: Path) -> Iterator[FakeAzure]:
    with a_cloud(FakeAzure, tmp_path) as azure:
        yield azure


def test_a_controller_on_azure_runs_a_job_there(azure: FakeAzure, tmp_path: Path) -> None:
    azure.faults.delay_s = 0.5
    azure.faults.identities_told_slowly = 2
    laptop = a_laptop(azure, tmp_path)
    up = laptop.perdure("controller", "up", "--infra", "azure/eastus")
    assert "every command here goes to it now" in up.stdout
    (machine,) = azure.living()
    told = laptop.client.controller()
    assert told["home"] == "/var/lib/perdure"
    record = laptop.record
    assert record.disk == azure.holdings.of(DISKS)[0]["name"]

    done = laptop.perdure(
        "jobs", "launch", "-y", "-n", "there", "--infra", "azure", "--cpus", "2+", "echo ran on $(hostname)"
    )
    (node,) = [one for one in azure.bought() if one.id != machine.id]
    assert f"ran on {node.id}" in done.stdout
    laptop.until(lambda: [one.id for one in azure.living()] == [machine.id], "the end of the job's machine")

    assert "What stays is its disk" in laptop.perdure("controller", "down", "-y").stdout
    assert not azure.living()
    assert not [one for kind in (INTERFACES, ADDRESSES, FIREWALLS) for one in azure.holdings.of(kind)]
    assert [one["name"] for one in azure.holdings.of(DISKS)] == [record.disk]
    assert "Nothing of it is left" in laptop.perdure("controller", "down", "-y", "--delete-disk").stdout
    assert not azure.holdings.of(DISKS)
    assert hosted.read(laptop.home) is None
