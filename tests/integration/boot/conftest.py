"""A controller on a fake cloud whose machines are booted distributions, and an S3 server for their buckets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.boot.machines import BootedMachine, BootedMachines, missing_requirement
from support.fakes.ec2 import FakeEc2
from support.helpers.controllers import running_controller
from support.helpers.package_index import PackageIndex, package_index
from support.worlds.jobs_on_clouds import FAKES, JobsOnClouds

BUCKET = "boot"


@dataclass(frozen=True)
class BootedJobs:
    jobs: JobsOnClouds
    machines: BootedMachines
    s3: Any  # a boto3 client
    index: PackageIndex

    def machine_of(self, job: int) -> BootedMachine:
        """The job's newest machine, once the job runs on it."""
        self.jobs.until(job, "RUNNING")
        return list(self.machines.machines.values())[-1]


@pytest.fixture(params=["aws", "gcp", "azure"])
def cloud(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def booted(cloud: str, tmp_path: Path) -> Iterator[BootedJobs]:
    if missing := missing_requirement():
        pytest.skip(missing)
    home = tmp_path / "home"
    home.mkdir()
    made: list[BootedMachines] = []

    def make(*about: Any) -> BootedMachines:
        made.append(BootedMachines(*about))
        return made[-1]

    with (
        FAKES[cloud](tmp_path / cloud, hidden=home, make_machines=make) as fake,
        FakeEc2() as store,
        package_index(tmp_path / "index") as index,
    ):
        index.add("by-pip")
        index.add("by-uv")
        buckets = store if cloud != "aws" else fake
        made[0].ports += [int(buckets.url.rpartition(":")[2]), index.port]
        buckets.s3.create_bucket(Bucket=BUCKET)
        config = fake.config + ("" if cloud == "aws" else store.config.split("\n")[1] + "\n")
        (home / "config.yaml").write_text(f"{config}listen: {{tls: auto}}\n")
        with running_controller(home, environ=fake.environ | buckets.environ) as controller:
            jobs = JobsOnClouds(controller, {cloud: fake})
            yield BootedJobs(jobs, made[0], buckets.s3, index)
            print("\n".join(f"---- {id}\n{one.console}" for id, one in made[0].machines.items()))
