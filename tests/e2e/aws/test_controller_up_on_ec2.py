"""`holdfast controller up` on EC2: its machine boots from user data, takes Holdfast in, and buys machines itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from controllers import Controller
from fake_ec2 import FakeEc2
from holdfast.sdk import hosted
from holdfast.sdk.client import Client

pytestmark = [
    pytest.mark.long,  # the machine fetches all that the controller needs
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="the machine makes a user"),
]


class Laptop(Controller):
    @property
    def client(self) -> Client:
        endpoint = hosted.serving(self.home)
        assert endpoint is not None
        return Client(endpoint)


@pytest.fixture
def ec2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEc2]:
    monkeypatch.setattr("controllers.PATIENCE_S", 600.0)
    (tmp_path / "home").mkdir()
    with FakeEc2(tmp_path / "ec2", hidden=tmp_path / "home") as ec2:
        for name, value in ec2.environ.items():
            monkeypatch.setenv(name, value)
        yield ec2


def test_a_controller_on_ec2_runs_a_job_there(ec2: FakeEc2, tmp_path: Path) -> None:
    (tmp_path / "home" / "config.yaml").write_text(ec2.config)
    laptop = Laptop(tmp_path / "home", ec2.environ)
    assert "every command here goes to it now" in laptop.holdfast("controller", "up", "--infra", "aws/us-east-1").stdout
    (machine,) = ec2.living()
    told = laptop.client.controller()
    assert told["home"] == "/var/lib/holdfast"
    assert hosted.read(laptop.home).disk.startswith("vol-")

    done = laptop.holdfast(
        "jobs", "launch", "-y", "-n", "there", "--infra", "aws", "--cpus", "2+", "echo ran on $(hostname)"
    )
    (node,) = [one for one in ec2.bought() if one.id != machine.id]
    assert f"ran on {node.id}" in done.stdout
    laptop.until(lambda: [one.id for one in ec2.living()] == [machine.id], "the end of the job's machine")

    assert "What stays is its disk" in laptop.holdfast("controller", "down", "-y").stdout
    assert not ec2.living()
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=ec2.url)
    assert client.describe_addresses()["Addresses"] == []
    assert [volume["VolumeId"] for volume in client.describe_volumes()["Volumes"]] == [hosted.read(laptop.home).disk]
