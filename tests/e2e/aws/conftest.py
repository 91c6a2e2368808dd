"""A controller that knows one real cloud: an EC2 of the tests' own, whose machines really run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from fake_ec2 import FakeEc2


@dataclass(frozen=True)
class OnEc2:
    """`controller`: see tests/e2e/conftest.py."""

    controller: Any
    ec2: FakeEc2

    def launch(self, name: str, run: str, **more: Any) -> int:
        """A job on spot machines of EC2; its id."""
        task = {"name": name, "run": run, "resources": {"infra": "aws", "use_spot": True}, **more}
        return int(self.controller.client.submit(name, [task], user="", key=name)["job_id"])

    def until(self, job: int, status: str) -> dict[str, Any]:
        def reached() -> bool:
            shown = self.controller.job(job)
            assert shown["status"] in (status, "PENDING", "STARTING", "RUNNING", "RECOVERING"), shown
            return bool(shown["status"] == status)

        self.controller.until(reached, f"job {job} {status}")
        return dict(self.controller.job(job))

    def saved(self, bucket: str) -> int:
        """The highest of the files `step-0001` … that the bucket has; 0 if none."""
        s3 = boto3.client("s3", region_name="us-east-1", endpoint_url=self.ec2.url, **self.keys)
        try:
            found = s3.list_objects_v2(Bucket=bucket, Prefix="step-").get("Contents", [])
        except s3.exceptions.NoSuchBucket:
            return 0
        return max((int(one["Key"].removeprefix("step-")) for one in found), default=0)

    @property
    def keys(self) -> dict[str, str]:
        environ = self.ec2.environ
        return {name.lower(): environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}

    def cost_is_the_bill(self, job: int) -> None:
        """No machine is left; what the controller says that they cost is what EC2 bills, to the second."""
        shown: dict[str, Any] = {}

        def all_gone() -> bool:
            shown.update(self.controller.job(job))
            return all(attempt["gone_at"] for attempt in shown["attempts"])

        self.controller.until(all_gone, "the end of every attempt")
        self.controller.until(lambda: not self.ec2.living(), "the end of every machine")
        bill = sum(one.usd for one in self.ec2.bought() if one.tags["holdfast:job"] == str(job))
        assert bill > 0
        assert shown["cost_usd"] == pytest.approx(bill, rel=1e-6)

    def until_printed(self, job: int, text: str) -> None:
        self.controller.until(lambda: text in self.controller.log(job), f"{text!r} in the log of job {job}")


@pytest.fixture
def on_ec2(tmp_path: Path, controller_on: Callable[..., contextlib.AbstractContextManager[Any]]) -> Iterator[OnEc2]:
    home = tmp_path / "home"
    home.mkdir()
    with FakeEc2(tmp_path / "ec2", hidden=home) as ec2:
        (home / "config.yaml").write_text(ec2.config)
        with controller_on(home, environ=ec2.environ) as controller:
            yield OnEc2(controller, ec2)
        assert not ec2.living()
