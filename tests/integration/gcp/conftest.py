"""The Google cloud on a fake Compute Engine without processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.gcp.cloud import GcpCloud
from perdure.controller.clouds.gcp.pricing.catalog import TYPES
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.clouds.pricing.cache import InMemoryOfferCache
from perdure.controller.runtime.clock import ManualClock
from support.fakes.gce import FakeGce
from support.helpers.launch_requests import launch_request


@pytest.fixture
def gce(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGce]:
    with FakeGce() as gce:
        for name, value in gce.environ.items():
            monkeypatch.setenv(name, value)
        yield gce


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cache(clock: ManualClock) -> InMemoryOfferCache:
    """One database for all clouds of a test, as daemons share it."""
    return InMemoryOfferCache(clock)


@pytest.fixture
def new_cloud(gce: FakeGce, clock: ManualClock, cache: InMemoryOfferCache) -> Callable[..., GcpCloud]:
    def make(**settings: Any) -> GcpCloud:
        return GcpCloud(cache, GcpSettings(**{"regions": gce.regions, "endpoint_url": gce.url, **settings}), clock)

    return make


@pytest.fixture
def cloud(new_cloud: Callable[..., GcpCloud]) -> GcpCloud:
    return new_cloud()


@pytest.fixture
def request_of() -> Callable[..., LaunchRequest]:
    def make(
        token: str = "t1", *, zone: str = "us-central1-a", kind: str = "n2-standard-2", **more: Any
    ) -> LaunchRequest:
        gpus = TYPES[kind].accelerators if kind in TYPES else None
        return launch_request("gcp", zone[:-2], zone, kind, token, memory_gib=8, **{"accelerators": gpus, **more})

    return make
