"""The cloud, and an EC2 of the tests' own without machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fake_ec2 import FakeEc2
from launch_requests import launch_request
from perdure.controller.clock import ManualClock
from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.aws.settings import AwsSettings
from perdure.controller.clouds.base import LaunchRequest
from perdure.controller.clouds.offercache import InMemory


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEc2]:
    with FakeEc2() as ec2:
        for name, value in ec2.environ.items():
            monkeypatch.setenv(name, value)
        yield ec2


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cache(clock: ManualClock) -> InMemory:
    """One for all clouds of a test: as daemons on the same database."""
    return InMemory(clock)


@pytest.fixture
def new_cloud(ec2: FakeEc2, clock: ManualClock, cache: InMemory) -> Callable[..., AwsCloud]:
    def make(**settings: Any) -> AwsCloud:
        return AwsCloud(cache, AwsSettings(**{"regions": ec2.regions, "endpoint_url": ec2.url, **settings}), clock)

    return make


@pytest.fixture
def cloud(new_cloud: Callable[..., AwsCloud]) -> AwsCloud:
    return new_cloud()


@pytest.fixture
def request_of() -> Callable[..., LaunchRequest]:
    def make(token: str = "t1", *, zone: str = "us-east-1a", kind: str = "c6a.large", **more: Any) -> LaunchRequest:
        return launch_request("aws", zone[:-1], zone, kind, token, **more)

    return make
