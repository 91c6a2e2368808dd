"""One bench per cloud that can host a controller."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from contract.hosting.hosting_bench import HostingBench
from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.aws.settings import AwsSettings
from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.gcp.cloud import GcpCloud
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.clouds.local.cloud import LocalCloud
from perdure.controller.clouds.local.settings import LocalSettings
from perdure.controller.clouds.pricing.cache import InMemoryOfferCache
from perdure.controller.runtime.clock import SystemClock
from support.fakes.azure import FakeAzure
from support.fakes.azure.holdings import ADDRESSES, FIREWALLS, INTERFACES
from support.fakes.ec2 import FakeEc2
from support.fakes.gce import FakeGce

NETWORK_KINDS = (INTERFACES, ADDRESSES, FIREWALLS)


@pytest.fixture(params=["local", "aws", "gcp", "azure"])
def bench(request: pytest.FixtureRequest) -> Iterator[HostingBench]:
    one: HostingBench = request.getfixturevalue(f"{request.param}_bench")
    yield one
    one.end(*(left for name in ("hosting-1", "hosting-2") for left in one.cloud.list_owned(name)))


@pytest.fixture
def local_bench(tmp_path: Path) -> HostingBench:
    if os.geteuid() != 0:
        pytest.skip("a machine that starts others needs root for its namespaces")
    cloud = LocalCloud(tmp_path, LocalSettings(), SystemClock())
    return HostingBench(cloud, ("local-east-a", "local-east-b"), "local-1", list, "local-east")


@pytest.fixture
def aws_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostingBench]:
    with FakeEc2() as ec2:
        _environment(monkeypatch, ec2)
        cloud = AwsCloud(
            InMemoryOfferCache(SystemClock()), AwsSettings(regions=ec2.regions, endpoint_url=ec2.url), SystemClock()
        )
        client = boto3.client("ec2", region_name="us-east-1", endpoint_url=ec2.url)

        def resources() -> list[str]:
            groups = client.describe_security_groups()["SecurityGroups"]
            addresses = [one["PublicIp"] for one in client.describe_addresses()["Addresses"]]
            return addresses + [one["GroupName"] for one in groups if one["GroupName"] != "default"]

        yield HostingBench(cloud, ("us-east-1a", "us-east-1b"), "c6a.large", resources, "us-east-1")


@pytest.fixture
def gcp_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostingBench]:
    with FakeGce() as gce:
        gce.faults.operation_s = 0.05
        _environment(monkeypatch, gce)
        cloud = GcpCloud(
            InMemoryOfferCache(SystemClock()), GcpSettings(regions=gce.regions, endpoint_url=gce.url), SystemClock()
        )

        def resources() -> list[str]:
            return [one["name"] for kind in ("addresses", "firewalls") for one in gce.holdings.of(kind)]

        yield HostingBench(cloud, ("us-central1-a", "us-central1-b"), "e2-standard-2", resources, "us-central1")


@pytest.fixture
def azure_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostingBench]:
    with FakeAzure() as azure:
        azure.faults.delay_s = 0.05
        _environment(monkeypatch, azure)
        cloud = AzureCloud(InMemoryOfferCache(SystemClock()), AzureSettings.from_mapping(azure.section), SystemClock())

        def resources() -> list[str]:
            return [one["name"] for kind in NETWORK_KINDS for one in azure.holdings.of(kind)]

        yield HostingBench(cloud, ("eastus-1", "eastus-2"), "Standard_F2s_v2", resources, "eastus")


def _environment(monkeypatch: pytest.MonkeyPatch, fake: FakeEc2 | FakeGce | FakeAzure) -> None:
    for name, value in fake.environ.items():
        monkeypatch.setenv(name, value)
