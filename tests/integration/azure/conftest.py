"""The cloud, and an Azure of the tests' own without machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_azure import FakeAzure
from holdfast.controller.clock import ManualClock
from holdfast.controller.clouds.azure.cloud import AzureCloud
from holdfast.controller.clouds.azure.settings import AzureSettings
from holdfast.controller.clouds.base import Bootstrap, LaunchRequest, Owner
from holdfast.recovery.market import Market, Offer


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
def new_cloud(azure: FakeAzure, clock: ManualClock, tmp_path: Path) -> Callable[..., AzureCloud]:
    def make(**settings: Any) -> AzureCloud:
        return AzureCloud(tmp_path, AzureSettings.from_mapping({**azure.section, **settings}), clock)

    return make


@pytest.fixture
def cloud(new_cloud: Callable[..., AzureCloud]) -> AzureCloud:
    return new_cloud()


@pytest.fixture
def request_of() -> Callable[..., LaunchRequest]:
    def make(token: str = "t1", *, zone: str = "eastus-1", kind: str = "Standard_F2s_v2", **more: Any) -> LaunchRequest:
        market = more.pop("market", Market.SPOT)
        offer = Offer("azure", zone.partition("-")[0], zone, kind, market, 0.02, 0.08, 2, 4)
        return LaunchRequest(
            **{
                "owner": Owner("ctl", job_id=7, task=0, generation=1, token=token),
                "offer": offer,
                "num_nodes": 1,
                "bootstrap": Bootstrap("http://ctl:1", "attempt-token", {"agent": "ab" * 32}),
                "name": "job",
                **more,
            }
        )

    return make
