"""`perdure controller up` on EC2: the host boots from user data, installs Perdure, and launches machines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from support.fakes.ec2 import FakeEc2
from support.helpers.hosted_controllers import fake_cloud_for_host, laptop_for

pytestmark = [
    pytest.mark.long,  # the machine fetches all that the controller needs
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="the machine makes a user"),
]


@pytest.fixture
def ec2(tmp_path: Path) -> Iterator[FakeEc2]:
    with fake_cloud_for_host(FakeEc2, tmp_path) as ec2:
        yield ec2


def test_controller_on_ec2__runs_a_job(ec2: FakeEc2, tmp_path: Path) -> None:
    laptop = laptop_for(ec2, tmp_path)
    assert (
        "every command on this computer now uses it"
        in laptop.perdure("controller", "up", "--infra", "aws/us-east-1", "-y").stdout
    )
    (machine,) = ec2.living()
    reported = laptop.client.controller()
    assert reported["home"] == "/var/lib/perdure"
    assert laptop.record.disk.startswith("vol-")

    done = laptop.perdure(
        "jobs", "launch", "-y", "-n", "there", "--infra", "aws", "--cpus", "2+", "echo ran on $(hostname)"
    )
    (node,) = [one for one in ec2.purchases() if one.id != machine.id]
    assert f"ran on {node.id}" in done.stdout
    laptop.until(lambda: [one.id for one in ec2.living()] == [machine.id], "the end of the job's machine")

    assert "The controller is down. Its disk" in laptop.perdure("controller", "down", "-y").stdout
    assert not ec2.living()
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=ec2.url)
    assert client.describe_addresses()["Addresses"] == []
    assert [volume["VolumeId"] for volume in client.describe_volumes()["Volumes"]] == [laptop.record.disk]
