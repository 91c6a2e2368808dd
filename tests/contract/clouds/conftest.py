"""One bench per cloud: the cloud, and the few things that a test must do to it differently."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fake_azure import FakeAzure
from fake_ec2 import FakeEc2
from fake_ec2.fis import ROLE
from fake_gce import FakeGce
from perdure.controller.clock import ManualClock, SystemClock
from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.aws.settings import AwsSettings
from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.base import Bootstrap, Cloud, Instance, InstanceState, LaunchRequest, Owner
from perdure.controller.clouds.fake import FakeCloud
from perdure.controller.clouds.gcp.cloud import GcpCloud
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.clouds.local.cloud import LocalCloud
from perdure.controller.clouds.local.settings import LocalSettings
from perdure.controller.clouds.offercache import InMemory
from perdure.recovery.market import Market, Offer

SLEEPER = b"import signal\nwhile True: signal.pause()\n"
PATIENCE_S = 20.0


@dataclass
class Bench:
    """`limit(zone, n)` sets a zone's capacity. `wait` lets a little time pass for the cloud."""

    cloud: Cloud
    agent: str
    limit: Callable[[str, int], None]
    wait: Callable[[], None]
    controllers: set[str] = field(default_factory=set)

    def offer(self, market: Market = Market.SPOT) -> Offer:
        return min((o for o in self.cloud.offers() if o.market is market), key=lambda o: o.price_per_hour)

    def request(
        self, token: str, *, nodes: int = 1, controller: str = "ctl-1", offer: Offer | None = None
    ) -> LaunchRequest:
        self.controllers.add(controller)
        return LaunchRequest(
            owner=Owner(controller, job_id=7, task=1, generation=3, token=token),
            offer=offer or self.offer(),
            num_nodes=nodes,
            bootstrap=Bootstrap("http://127.0.0.1:1", "attempt-token", {"agent": self.agent}),
            name="contract",
        )

    def launch(self, token: str, *, nodes: int = 1, controller: str = "ctl-1") -> Sequence[Instance]:
        return self.cloud.launch(self.request(token, nodes=nodes, controller=controller))

    def see(self, instances: Sequence[Instance]) -> list[Instance]:
        seen = self.cloud.describe(instances[0].region, [i.id for i in instances])
        return sorted(seen, key=lambda i: i.rank)

    def until_gone(self, instances: Sequence[Instance]) -> list[Instance]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            seen = self.see(instances)
            if all(i.state is InstanceState.GONE for i in seen):
                return seen
            assert time.monotonic() < deadline, seen
            self.wait()

    def end(self, instances: Sequence[Instance]) -> list[Instance]:
        self.cloud.terminate(instances[0].region, [i.id for i in instances])
        return self.until_gone(instances)


@pytest.fixture(params=["fake", "local", "aws", "gcp", "azure"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    make = {"fake": fake_bench, "local": lambda: local_bench(tmp_path)}
    bench = make[request.param]() if request.param in make else request.getfixturevalue(f"{request.param}_bench")
    yield bench
    for controller in bench.controllers:
        if left := bench.cloud.list_owned(controller):
            bench.end(left)


def fake_bench() -> Bench:
    clock = ManualClock()
    cloud = FakeCloud(clock)
    cloud.faults.ending_s = 3.0
    return Bench(cloud, "0" * 64, cloud.faults.capacity.__setitem__, lambda: clock.advance(1.0))


def local_bench(home: Path) -> Bench:
    agent = hashlib.sha256(SLEEPER).hexdigest()
    (home / "artifacts").mkdir()
    (home / "artifacts" / agent).write_bytes(SLEEPER)
    cloud = LocalCloud(home, LocalSettings(), SystemClock())

    def limit(zone: str, capacity: int) -> None:
        (home / "local").mkdir(exist_ok=True)
        (home / "local" / "zones.json").write_text(json.dumps({zone: {"capacity": capacity}}))

    return Bench(cloud, agent, limit, wait)


def wait() -> None:
    """A little of the world's own time."""
    threading.Event().wait(0.01)


@pytest.fixture(scope="session")
def fetched() -> InMemory:
    """What was fetched from clouds, as they keep it."""
    cache = InMemory(SystemClock())
    with FakeEc2() as ec2, pytest.MonkeyPatch.context() as patch:
        aws_cloud(cache, ec2, patch).prices.refresh(PATIENCE_S)
    with FakeGce() as gce, pytest.MonkeyPatch.context() as patch:
        gcp_cloud(cache, gce, patch).prices.refresh(PATIENCE_S)
    return cache


def aws_cloud(cache: InMemory, ec2: FakeEc2, patch: pytest.MonkeyPatch) -> AwsCloud:
    for name, value in ec2.environ.items():
        patch.setenv(name, value)
    return AwsCloud(cache, AwsSettings(regions=ec2.regions, endpoint_url=ec2.url, fis_role=ROLE), SystemClock())


@pytest.fixture
def aws_bench(fetched: InMemory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with FakeEc2() as ec2:
        ec2.faults.fis_notice_s = 2.5  # EC2 gives its own notice, and never none; it tells of ends in whole seconds
        cloud = aws_cloud(fetched, ec2, monkeypatch)
        yield Bench(cloud, "0" * 64, ec2.faults.capacity.__setitem__, wait)


def gcp_cloud(cache: InMemory, gce: FakeGce, patch: pytest.MonkeyPatch) -> GcpCloud:
    for name, value in gce.environ.items():
        patch.setenv(name, value)
    return GcpCloud(cache, GcpSettings(regions=gce.regions, endpoint_url=gce.url), SystemClock())


@pytest.fixture
def gcp_bench(fetched: InMemory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with FakeGce() as gce:
        gce.faults.soft_off_s = 1.5  # Google gives its own notice, and never none
        cloud = gcp_cloud(fetched, gce, monkeypatch)
        yield Bench(cloud, "0" * 64, gce.faults.capacity.__setitem__, lambda: threading.Event().wait(0.05))


@pytest.fixture
def azure_bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with FakeAzure() as azure:
        azure.faults.evicted_after_s = 1.5
        for name, value in azure.environ.items():
            monkeypatch.setenv(name, value)
        cloud = AzureCloud(InMemory(SystemClock()), AzureSettings.from_mapping(azure.section), SystemClock())
        cloud.prices.refresh(PATIENCE_S)
        yield Bench(cloud, "0" * 64, azure.faults.capacity.__setitem__, wait)
