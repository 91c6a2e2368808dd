"""EC2 over HTTP as the place where the six jobs of `crash_scenario` run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3

from crash_worlds import World
from fake_ec2 import FakeEc2
from perdure.controller.clouds.local import layout
from perdure.sdk.client import Client

CHEAPEST_ZONE = "us-east-1a"


class Ec2World(World):
    """Lives in the test's process, so that the daemon may die and the machines stay."""

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
