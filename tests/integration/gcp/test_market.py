"""Zones and types, crawled; and who may crawl."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import yaml

from fake_gce import FakeGce
from fake_gce.discovery import MAY
from fake_gce.rules import SMALL_ZONE
from holdfast.controller.clock import ManualClock
from holdfast.controller.clouds.base import LaunchRequest
from holdfast.controller.clouds.gcp.cloud import GcpCloud
from holdfast.controller.clouds.gcp.permissions import wanted
from holdfast.controller.clouds.gcp.settings import GcpSettings
from holdfast.controller.clouds.offercache import InMemory
from holdfast.controller.clouds.pricelist import AGE_AFTER_TROUBLE_S, AGE_S
from holdfast.recovery.market import FaultKind, Market
from holdfast.recovery.reasons import Reason

ROLE = Path(__file__).parents[3] / "deploy" / "iam" / "gcp-controller.yaml"
# What each call needs: cloud.google.com/compute/docs/reference/rest/v1, "IAM permissions" of each method.
NEEDS = {
    "instances.bulkInsert": {
        *("compute.instances.create", "compute.instances.setLabels", "compute.instances.setMetadata"),
        *("compute.disks.create", "compute.disks.setLabels", "compute.images.useReadOnly"),
        *("compute.subnetworks.use", "compute.subnetworks.useExternalIp", "compute.networks.use"),
        *("compute.networks.useExternalIp", "compute.instances.setServiceAccount"),
    },
    "instances.list": {"compute.instances.list"},
    "instances.aggregatedList": {"compute.instances.list"},
    "instances.delete": {"compute.instances.delete", "compute.disks.delete"},
    "instances.simulateMaintenanceEvent": {"compute.instances.simulateMaintenanceEvent"},
    "zoneOperations.list": {"compute.zoneOperations.list"},
    "zoneOperations.wait": {"compute.zoneOperations.get"},
    "regions.list": {"compute.regions.list"},
    "zones.list": {"compute.zones.list"},
    MAY: set(),  # anybody may
    "machineTypes.list": {"compute.machineTypes.list"},
    "acceleratorTypes.list": {"compute.acceleratorTypes.list"},
    # cloud.google.com/pubsub/docs/access-control
    "projects.subscriptions.pull": {"pubsub.subscriptions.consume"},
    "projects.subscriptions.acknowledge": {"pubsub.subscriptions.consume"},
}


def crawls(gce: FakeGce) -> int:
    return gce.calls["machineTypes.list"]


def until(condition: Callable[[], Any]) -> None:
    for _ in range(1200):
        if condition():
            return
        Event().wait(0.05)
    raise AssertionError("in vain")


def test_offers_are_those_of_every_zone_at_its_regions_price(gce: FakeGce, new_cloud: Callable[..., GcpCloud]) -> None:
    offers = new_cloud(regions=()).offers()
    assert {offer.region for offer in offers} == set(gce.regions)
    assert {o.zone for o in offers if o.region == "us-east4"} == {f"us-east4-{letter}" for letter in "abc"}
    (h100,) = {o.accelerators for o in offers if o.instance_type == "a3-highgpu-8g"}
    assert h100 == ("H100", 8.0)
    spot = {
        (o.region, o.price_per_hour) for o in offers if o.instance_type == "g2-standard-4" and o.market is Market.SPOT
    }
    assert len(spot) == len(gce.regions)


def test_a_zone_sells_what_it_has(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    with FakeGce(regions=("europe-west4",)) as gce:
        for name, value in gce.environ.items():
            monkeypatch.setenv(name, value)
        section = yaml.safe_load(gce.config)["gcp"]
        cloud = GcpCloud(InMemory(clock), GcpSettings.from_mapping(section), clock)
        small = [o for o in cloud.offers() if o.zone == SMALL_ZONE]
        assert small
        assert not [o for o in small if o.accelerators]
        assert [o for o in cloud.offers() if o.instance_type == "n1-highmem-8+t4x1"]


def test_a_crawl_is_done_once_and_again_when_it_is_old(
    gce: FakeGce, cloud: GcpCloud, new_cloud: Callable[..., GcpCloud], clock: ManualClock
) -> None:
    first = cloud.offers()
    once = crawls(gce)
    assert once == 7
    assert cloud.offers() is first
    assert new_cloud().offers() == first, "a new daemon finds them in the database"
    assert crawls(gce) == once
    clock.advance(AGE_S)
    assert cloud.offers() is first, "nobody waits for the new ones"
    until(lambda: crawls(gce) == 2 * once and cloud.offers() is not first)
    assert cloud.offers() == first


def test_whoever_is_not_let_in_is_told_what_to_do(gce: FakeGce, cloud: GcpCloud, clock: ManualClock) -> None:
    gce.faults.deny = "accessNotConfigured"
    with pytest.raises(Exception, match="has not been used") as caught:
        cloud.offers()
    fault = cloud.classify(caught.value)
    assert (fault.kind, fault.reason) == (FaultKind.AVOID_CLOUD, Reason.BAD_CREDENTIALS)
    assert "gcloud services enable" in fault.message
    gce.faults.deny = None
    clock.advance(AGE_AFTER_TROUBLE_S)
    assert cloud.offers()


def test_the_role_allows_what_is_called_and_nothing_more(
    gce: FakeGce, new_cloud: Callable[..., GcpCloud], request_of: Callable[..., LaunchRequest]
) -> None:
    """Every call that the code can make, made; and no method of a client in the code that was not."""
    url = gce.subscription("holdfast")
    cloud = new_cloud(notice_queues=(url,))
    cloud.offers()
    (machine,) = cloud.launch(request_of())
    cloud.list_owned("ctl")
    cloud.interrupt("us-central1", machine.id, notice_s=None)
    cloud.describe("us-central1", [machine.id])
    cloud.terminate("us-central1", [machine.id])
    gce.pubsub.send(url.partition("/v1/")[2], b"{}")
    (queue,) = cloud.notice_queues()
    queue.delete(queue.receive())
    cloud.check()
    named = yaml.safe_load(ROLE.read_text())["includedPermissions"]
    allowed = [name for name in named if not name.startswith("storage.")]  # those: tests/unit/storage/test_gcs.py
    assert len(allowed) == len(set(allowed))
    assert set(allowed) == set().union(*(NEEDS[method] for method in gce.calls))
    package = Path(__file__).parents[3] / "controller/holdfast/controller/clouds/gcp"
    code = "".join(path.read_text() for path in package.glob("*.py"))
    named = set(re.findall(r"onnections\.(\w+)\.(\w+)\(request=", code.replace("\n", "")))
    camel = {f"{_camel(client)}.{_camel(method.removesuffix('_unary'))}" for client, method in named}
    camel |= {f"projects.subscriptions.{what}" for what in re.findall(r"self\._call\(\"(\w+)\"", code)}
    called = {name.replace("zoneOperations", "operations") for name in gce.calls}
    assert camel == called - {MAY}
    assert {one.name for one in wanted(GcpSettings(service_account="any", notice_queues=(url,)))} == set(allowed)


def _camel(name: str) -> str:
    first, *more = name.split("_")
    return first + "".join(map(str.title, more))
