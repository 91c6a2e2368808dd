"""A controller with one cloud: the fake EC2, whose instances are real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.worlds.jobs_on_clouds import JobsOnClouds, running_jobs_on_clouds


@pytest.fixture
def on_ec2(tmp_path: Path) -> Iterator[JobsOnClouds]:
    with running_jobs_on_clouds(tmp_path, "aws") as one:
        yield one
