"""One bench per cloud that can give a controller a machine of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import boto3
import pytest

from fake_azure import FakeAzure
from fake_azure.holdings import ADDRESSES, FIREWALLS, INTERFACES
from fake_ec2 import FakeEc2
from fake_gce import FakeGce
from launch_requests import launch_request
from perdure.controller.clock import SystemClock
from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.aws.settings import AwsSettings
from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.base import Disk, Instance, InstanceState, LaunchRequest, NotYet, Standing
from perdure.controller.clouds.gcp.cloud import GcpCloud
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.clouds.local.cloud import LocalCloud
from perdure.controller.clouds.local.settings import LocalSettings
from perdure.controller.clouds.offercache import InMemory
from perdure.controller.hosting import configuring
from perdure.recovery.market import Market

PROGRAM = "import signal\nwhile True: signal.pause()\n"
PATIENCE_S = 20.0
NETWORK_KINDS = (INTERFACES, ADDRESSES, FIREWALLS)
T = TypeVar("T")


@dataclass
class Bench:
    """`zones`: two of one region, where `kind` is sold. `kept`: what of a bring-up is there, besides its disk and
    machine."""

    cloud: Any
    zones: tuple[str, str]
    kind: str
    kept: Callable[[], list[str]]
    region: str

    def request(self, token: str, name: str = "hosting-1", zone: str | None = None) -> LaunchRequest:
        made = launch_request(
            self.cloud.name, self.region, zone or self.zones[0], self.kind, token, market=Market.ON_DEMAND, disk_gib=20
        )
        owner = type(made.owner)(name, 0, 0, 0, token)
        return LaunchRequest(owner, made.offer, 1, made.bootstrap, "perdure-controller", 20)

    def disk(self, name: str = "hosting-1", zone: str | None = None, gib: int = 20) -> Disk:
        found: Disk = self.cloud.state_disk(name, region=self.region, zone=zone or self.zones[0], gib=gib)
        return found

    def needs(self, name: str = "hosting-1") -> Standing:
        disk = self.disk(name)
        home = configuring.home_of(self.cloud.name, disk)
        return Standing(PROGRAM, home, disk, 8443, "192.0.2.0/24", "perdure-controller")

    def stand(self, token: str, name: str = "hosting-1") -> Instance:
        """Until it stands."""
        needs = self.needs(name)
        return self.until(lambda: self.cloud.stand(self.request(token, name), needs))

    def settle(self, instance: Instance, name: str = "hosting-1") -> str:
        """Its address, once it has one."""

        def once() -> str | None:
            (now,) = self.cloud.describe(self.region, [instance.id])
            told: str | None = self.cloud.settle(now, self.disk(name))
            return told

        address = self.until(once)
        assert address is not None
        return address

    def end(self, *instances: Instance) -> None:
        self.cloud.terminate(self.region, [one.id for one in instances])
        self.until(
            lambda: not [left for one in instances for left in self.cloud.list_owned(one.owner.controller)] or None
        )

    def until(self, ask: Callable[[], T]) -> T:
        """The first answer that is none of None and NotYet."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                if (told := ask()) is not None:
                    return told
            except NotYet:
                pass
            assert time.monotonic() < give_up_at, "in vain"
            Event().wait(0.02)

    def finish(self, do: Callable[[], None]) -> None:
        """Until it is done."""
        self.until(lambda: do() or True)

    def see(self, instance: Instance) -> Instance:
        def running() -> Instance | None:
            (now,) = self.cloud.describe(self.region, [instance.id])
            return now if now.state is not InstanceState.PENDING else None

        return self.until(running)


@pytest.fixture(params=["local", "aws", "gcp", "azure"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    one: Bench = request.getfixturevalue(f"{request.param}_bench")
    yield one
    one.end(*(left for name in ("hosting-1", "hosting-2") for left in one.cloud.list_owned(name)))


@pytest.fixture
def local_bench(tmp_path: Path) -> Bench:
    if os.geteuid() != 0:
        pytest.skip("a machine that starts others needs namespaces of root's")
    cloud = LocalCloud(tmp_path, LocalSettings(), SystemClock())
    return Bench(cloud, ("local-east-a", "local-east-b"), "local-1", list, "local-east")


@pytest.fixture
def aws_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with FakeEc2() as ec2:
        _environment(monkeypatch, ec2)
        cloud = AwsCloud(InMemory(SystemClock()), AwsSettings(regions=ec2.regions, endpoint_url=ec2.url), SystemClock())
        client = boto3.client("ec2", region_name="us-east-1", endpoint_url=ec2.url)

        def kept() -> list[str]:
            groups = client.describe_security_groups()["SecurityGroups"]
            addresses = [one["PublicIp"] for one in client.describe_addresses()["Addresses"]]
            return addresses + [one["GroupName"] for one in groups if one["GroupName"] != "default"]

        yield Bench(cloud, ("us-east-1a", "us-east-1b"), "c6a.large", kept, "us-east-1")


@pytest.fixture
def gcp_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with FakeGce() as gce:
        gce.faults.operation_s = 0.05
        _environment(monkeypatch, gce)
        cloud = GcpCloud(InMemory(SystemClock()), GcpSettings(regions=gce.regions, endpoint_url=gce.url), SystemClock())

        def kept() -> list[str]:
            return [one["name"] for kind in ("addresses", "firewalls") for one in gce.holdings.of(kind)]

        yield Bench(cloud, ("us-central1-a", "us-central1-b"), "e2-standard-2", kept, "us-central1")


@pytest.fixture
def azure_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with FakeAzure() as azure:
        azure.faults.delay_s = 0.05
        _environment(monkeypatch, azure)
        cloud = AzureCloud(InMemory(SystemClock()), AzureSettings.from_mapping(azure.section), SystemClock())

        def kept() -> list[str]:
            return [one["name"] for kind in NETWORK_KINDS for one in azure.holdings.of(kind)]

        yield Bench(cloud, ("eastus-1", "eastus-2"), "Standard_F2s_v2", kept, "eastus")


def _environment(monkeypatch: pytest.MonkeyPatch, fake: Any) -> None:
    for name, value in fake.environ.items():
        monkeypatch.setenv(name, value)
