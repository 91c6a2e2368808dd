"""The servers of a real Kubernetes, which all tests of a run share, and a namespace with nodes for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.clouds.base.protocol import Instance, LaunchRequest
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from perdure.controller.clouds.kubernetes.settings import KubernetesSettings
from perdure.controller.runtime.clock import SystemClock
from perdure.recovery.market.view import Market
from support.helpers.launch_requests import launch_request
from support.real_kube import HollowNodes, RealKube, Servers, create_pod_policies, missing


class SettledCloud(KubernetesCloud):
    """A cloud whose launches return once the scheduler and the kubelets have acted, as those of the fake do."""

    settle: Callable[[], None] = staticmethod(lambda: None)

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        launched = super().launch(request)
        self.settle()
        return launched


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    if (why := missing()) is not None:
        pytest.skip(why)
    servers = Servers()
    servers.start()
    create_pod_policies(servers)
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def nodes(servers: Servers) -> Iterator[HollowNodes]:
    nodes = HollowNodes(servers.client())
    nodes.start()
    yield nodes
    nodes.stop()


@pytest.fixture
def new_kube(servers: Servers, nodes: HollowNodes, tmp_path: Path) -> Iterator[Callable[..., RealKube]]:
    made: list[RealKube] = []

    def make(**more: Any) -> RealKube:
        made.append(RealKube(servers, nodes, tmp_path, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def kube(new_kube: Callable[..., RealKube]) -> RealKube:
    return new_kube()


@pytest.fixture
def new_cloud(kube: RealKube) -> Callable[..., KubernetesCloud]:
    """A controller's cloud; a second one stands for the controller after a restart."""
    return cloud_maker(kube)


def cloud_maker(kube: RealKube) -> Callable[..., KubernetesCloud]:
    def make(**section: Any) -> KubernetesCloud:
        settings = KubernetesSettings.from_mapping({"kubeconfig": str(kube.kubeconfig), **section})
        cloud = SettledCloud(settings, SystemClock())
        cloud.settle = kube.settle  # type: ignore[method-assign]
        return cloud

    return make


@pytest.fixture
def request_of(kube: RealKube) -> Callable[..., LaunchRequest]:
    def make(token: str = "t1", *, kind: str = "1CPU--2GB", zone: str = "zone-1", **more: Any) -> LaunchRequest:
        return launch_request("kubernetes", kube.context, zone, kind, token, **{"market": Market.ON_DEMAND, **more})

    return make
