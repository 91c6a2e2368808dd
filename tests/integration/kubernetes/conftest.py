"""A fake Kubernetes cluster without processes, and the cloud that uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from perdure.controller.clouds.kubernetes.settings import KubernetesSettings
from perdure.controller.runtime.clock import SystemClock
from perdure.recovery.market.view import Market
from support.fakes.kube import FakeKube
from support.helpers.launch_requests import launch_request


@pytest.fixture
def kube() -> Iterator[FakeKube]:
    with FakeKube() as kube:
        yield kube


@pytest.fixture
def new_cloud(kube: FakeKube) -> Callable[..., KubernetesCloud]:
    """A controller's cloud; a second one stands for the controller after a restart."""

    def make(**section: Any) -> KubernetesCloud:
        settings = KubernetesSettings.from_mapping({"kubeconfig": str(kube.kubeconfig), **section})
        return KubernetesCloud(settings, SystemClock())

    return make


@pytest.fixture
def request_of(kube: FakeKube) -> Callable[..., LaunchRequest]:
    def make(token: str = "t1", *, kind: str = "1CPU--2GB", zone: str = "zone-1", **more: Any) -> LaunchRequest:
        more = {"market": Market.ON_DEMAND, **more}
        return launch_request("kubernetes", kube.context, zone, kind, token, **more)

    return make
