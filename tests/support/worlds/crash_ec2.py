"""The fake EC2 as the cloud of the six jobs of `crash_scenario`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3

from perdure.controller.clouds.local import layout
from perdure.sdk.connection.client import Client
from support.fakes.ec2 import FakeEc2
from support.worlds.crash_clouds import World

CHEAPEST_ZONE = "us-east-1a"


class Ec2World(World):
    """The fake runs in the test's process, so that machines survive the daemon."""

    where: dict[str, Any] = {"infra": "aws", "instance_type": "c6a.large"}  # noqa: RUF012 - a constant
    store = "s3"
    judge_on_node = f"{layout.NODE_BUCKETS}/judge"

    def __init__(self, home: Path) -> None:
        super().__init__(home.parent / "ec2")
        self._ec2 = FakeEc2(self.folder, hidden=home)
        self._ec2.__enter__()
        self._ec2.faults.capacity[CHEAPEST_ZONE] = 2
        self.config, self.environ = self._ec2.config, self._ec2.environ
        keys = {name.lower(): self.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        self._s3 = boto3.client("s3", region_name="us-east-1", endpoint_url=self._ec2.url, **keys)

    def interrupt(self, client: Client, job_id: int, machine: str, *, notice_s: float | None) -> None:
        self._ec2.interrupt(machine, notice_s=notice_s)

    def has_bucket(self, name: str) -> bool:
        return name in {bucket["Name"] for bucket in self._s3.list_buckets()["Buckets"]}

    def close(self) -> None:
        self._ec2.close()
