"""The Azure cloud on a fake Azure without processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.pricing.cache import InMemoryOfferCache
from perdure.controller.runtime.clock import ManualClock
from support.fakes.azure import FakeAzure
from support.helpers.launch_requests import launch_request


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAzure]:
    with FakeAzure() as azure:
        for name, value in azure.environ.items():
            monkeypatch.setenv(name, value)
        yield azure


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cache(clock: ManualClock) -> InMemoryOfferCache:
    """One database for all clouds of a test, as daemons share it."""
    return InMemoryOfferCache(clock)


@pytest.fixture
def new_cloud(azure: FakeAzure, clock: ManualClock, cache: InMemoryOfferCache) -> Callable[..., AzureCloud]:
    def make(**settings: Any) -> AzureCloud:
        return AzureCloud(cache, AzureSettings.from_mapping({**azure.section, **settings}), clock)

    return make


@pytest.fixture
def cloud(new_cloud: Callable[..., AzureCloud]) -> AzureCloud:
    return new_cloud()


@pytest.fixture
def request_of() -> Callable[..., LaunchRequest]:
    def make(token: str = "t1", *, zone: str = "eastus-1", kind: str = "Standard_F2s_v2", **more: Any) -> LaunchRequest:
        return launch_request("azure", zone.partition("-")[0], zone, kind, token, **more)

    return make
