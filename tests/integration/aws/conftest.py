"""The AWS cloud on a fake EC2 without processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.aws.settings import AwsSettings
from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.pricing.cache import InMemoryOfferCache
from perdure.controller.runtime.clock import ManualClock
from support.fakes.ec2 import FakeEc2
from support.helpers.launch_requests import launch_request


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
def cache(clock: ManualClock) -> InMemoryOfferCache:
    """One database for all clouds of a test, as daemons share it."""
    return InMemoryOfferCache(clock)


@pytest.fixture
def new_cloud(ec2: FakeEc2, clock: ManualClock, cache: InMemoryOfferCache) -> Callable[..., AwsCloud]:
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
