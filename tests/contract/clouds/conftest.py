"""One bench per cloud: the cloud, and the operations that tests perform differently on each cloud."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.aws.settings import AwsSettings
from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.contract_suite import TIMEOUT_S, CloudBench
from perdure.controller.clouds.fake import FakeCloud
from perdure.controller.clouds.gcp.cloud import GcpCloud
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from perdure.controller.clouds.kubernetes.settings import KubernetesSettings
from perdure.controller.clouds.local.cloud import LocalCloud
from perdure.controller.clouds.local.settings import LocalSettings
from perdure.controller.clouds.pricing.cache import InMemoryOfferCache
from perdure.controller.runtime.clock import ManualClock, SystemClock
from support.fakes.azure import FakeAzure
from support.fakes.ec2 import FakeEc2
from support.fakes.ec2.fis import ROLE
from support.fakes.gce import FakeGce
from support.fakes.kube import FakeKube
from support.fakes.kube.clusters import join_kubeconfigs

SLEEPER = b"import signal\nwhile True: signal.pause()\n"


@pytest.fixture(params=["fake", "local", "aws", "gcp", "azure", "kubernetes"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CloudBench]:
    make = {"fake": fake_bench, "local": lambda: local_bench(tmp_path)}
    made = make[request.param]() if request.param in make else request.getfixturevalue(f"{request.param}_bench")
    with made as bench:
        yield bench


def fake_bench() -> CloudBench:
    clock = ManualClock()
    cloud = FakeCloud(clock)
    cloud.faults.ending_s = 3.0
    return CloudBench(cloud, cloud.faults.capacity.__setitem__, wait=lambda: clock.advance(1.0))


def local_bench(home: Path) -> CloudBench:
    agent = hashlib.sha256(SLEEPER).hexdigest()
    (home / "artifacts").mkdir()
    (home / "artifacts" / agent).write_bytes(SLEEPER)
    cloud = LocalCloud(home, LocalSettings(), SystemClock())

    def set_capacity(zone: str, capacity: int) -> None:
        (home / "local").mkdir(exist_ok=True)
        (home / "local" / "zones.json").write_text(json.dumps({zone: {"capacity": capacity}}))

    return CloudBench(cloud, set_capacity, agent)


@pytest.fixture(scope="session")
def fetched() -> InMemoryOfferCache:
    """A cache with the offers of the clouds that take long to fetch."""
    cache = InMemoryOfferCache(SystemClock())
    with FakeEc2() as ec2, pytest.MonkeyPatch.context() as patch:
        aws_cloud(cache, ec2, patch).prices.refresh(TIMEOUT_S)
    with FakeGce() as gce, pytest.MonkeyPatch.context() as patch:
        gcp_cloud(cache, gce, patch).prices.refresh(TIMEOUT_S)
    return cache


def aws_cloud(cache: InMemoryOfferCache, ec2: FakeEc2, patch: pytest.MonkeyPatch) -> AwsCloud:
    for name, value in ec2.environ.items():
        patch.setenv(name, value)
    return AwsCloud(cache, AwsSettings(regions=ec2.regions, endpoint_url=ec2.url, fis_role=ROLE), SystemClock())


@pytest.fixture
def aws_bench(fetched: InMemoryOfferCache, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudBench]:
    with FakeEc2() as ec2:
        ec2.faults.fis_notice_s = 2.5  # EC2 always gives its own notice, and reports times of ends in whole seconds
        cloud = aws_cloud(fetched, ec2, monkeypatch)
        yield CloudBench(cloud, ec2.faults.capacity.__setitem__)


def gcp_cloud(cache: InMemoryOfferCache, gce: FakeGce, patch: pytest.MonkeyPatch) -> GcpCloud:
    for name, value in gce.environ.items():
        patch.setenv(name, value)
    return GcpCloud(cache, GcpSettings(regions=gce.regions, endpoint_url=gce.url), SystemClock())


@pytest.fixture
def gcp_bench(fetched: InMemoryOfferCache, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudBench]:
    with FakeGce() as gce:
        gce.faults.soft_off_s = 1.5  # Google always gives its own notice
        cloud = gcp_cloud(fetched, gce, monkeypatch)
        yield CloudBench(cloud, gce.faults.capacity.__setitem__, wait=lambda: threading.Event().wait(0.05))


@pytest.fixture
def azure_bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudBench]:
    with FakeAzure() as azure:
        azure.faults.evicted_after_s = 1.5
        for name, value in azure.environ.items():
            monkeypatch.setenv(name, value)
        cloud = AzureCloud(InMemoryOfferCache(SystemClock()), AzureSettings.from_mapping(azure.section), SystemClock())
        cloud.prices.refresh(TIMEOUT_S)
        yield CloudBench(cloud, azure.faults.capacity.__setitem__)


@pytest.fixture
def kubernetes_bench(tmp_path: Path) -> Iterator[CloudBench]:
    """Two clusters. A zone has one on-demand node, and one spot node, where the capacity is limited."""
    with FakeKube(context="east") as east, FakeKube(context="west") as west:
        clusters = {"east": east, "west": west}
        for context, kube in clusters.items():
            kube.faults.stop_s = 0.05
            for zone in (f"{context}-1", f"{context}-2"):
                kube.add_node(f"{zone}-fixed", zone=zone)
                kube.add_node(f"{zone}-spot", zone=zone, labels={"karpenter.sh/capacity-type": "spot"})
        join_kubeconfigs(tmp_path / "kubeconfig", clusters.values())
        section = {
            "kubeconfig": str(tmp_path / "kubeconfig"),
            "allowed_contexts": "all",
            "context_configs": {"west": {"pricing": {"cpu": 0.08, "memory": 0.01}}},
        }
        cloud = KubernetesCloud(KubernetesSettings.from_mapping(section), SystemClock())

        def set_capacity(zone: str, capacity: int) -> None:
            clusters[zone.partition("-")[0]].limit_pods(f"{zone}-spot", capacity)

        yield CloudBench(cloud, set_capacity)
