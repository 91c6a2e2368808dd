"""Offers and prices fetched from Google, and the permissions for it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.gcp.cloud import GcpCloud
from perdure.controller.clouds.gcp.iam.permissions import required_permissions
from perdure.controller.clouds.gcp.pricing.catalog import TYPES, on_demand_price, spot_price
from perdure.controller.clouds.gcp.pricing.retail_prices import MAX_AGE_S as PRICE_LIST_MAX_AGE_S
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.clouds.pricing.cache import InMemoryOfferCache
from perdure.controller.clouds.pricing.price_list import MAX_AGE_S, RETRY_AFTER_FAILURE_S
from perdure.controller.runtime.clock import ManualClock
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market, Offer
from perdure.recovery.reasons import Reason
from support.fakes.gce import FakeGce, billing
from support.fakes.gce.discovery import MAY
from support.fakes.gce.machine_catalog import NEW_ZONE, NOT_OFFERED, SMALL_ZONE, ZONES
from support.helpers.launch_requests import open_and_close, stop_and_start
from support.helpers.timing import scaled, wait_until

pytestmark = pytest.mark.long

ROLE = Path(__file__).parents[3] / "deploy" / "iam" / "gcp-controller.yaml"
# What each call needs: cloud.google.com/compute/docs/reference/rest/v1, "IAM permissions" of each method.
# The rules that open ports are those of `controller_host`.
OF_PORTS = {
    "firewalls.get": {"compute.firewalls.get"},
    "firewalls.insert": {"compute.firewalls.create", "compute.networks.updatePolicy"},
    "firewalls.patch": {"compute.firewalls.update", "compute.networks.updatePolicy"},
    "firewalls.delete": {"compute.firewalls.delete", "compute.networks.updatePolicy"},
    "globalOperations.wait": {"compute.globalOperations.get"},
}
NEEDS = {
    "instances.bulkInsert": {
        *("compute.instances.create", "compute.instances.setLabels", "compute.instances.setMetadata"),
        *("compute.disks.create", "compute.disks.setLabels", "compute.images.useReadOnly"),
        *("compute.subnetworks.use", "compute.subnetworks.useExternalIp", "compute.networks.use"),
        *("compute.networks.useExternalIp", "compute.instances.setServiceAccount"),
        "compute.instances.setTags",
    },
    "instances.list": {"compute.instances.list"},
    "instances.aggregatedList": {"compute.instances.list"},
    "instances.getSerialPortOutput": {"compute.instances.getSerialPortOutput"},
    "instances.delete": {"compute.instances.delete", "compute.disks.delete"},
    **OF_PORTS,
    "instances.stop": {"compute.instances.stop"},
    "instances.start": {"compute.instances.start"},
    "instances.setMetadata": {"compute.instances.setMetadata"},
    "instances.setLabels": {"compute.instances.setLabels"},
    "instances.simulateMaintenanceEvent": {"compute.instances.simulateMaintenanceEvent"},
    "zoneOperations.list": {"compute.zoneOperations.list"},
    "zoneOperations.wait": {"compute.zoneOperations.get"},
    "regions.list": {"compute.regions.list"},
    "zones.list": {"compute.zones.list"},
    MAY: set(),  # anybody may
    "machineTypes.aggregatedList": {"compute.machineTypes.list"},
    "acceleratorTypes.aggregatedList": {"compute.acceleratorTypes.list"},
    "services.skus.list": set(),  # anybody may: cloud.google.com/billing/docs/reference/rest/v1/services.skus/list
    # cloud.google.com/pubsub/docs/access-control
    "projects.subscriptions.pull": {"pubsub.subscriptions.consume"},
    "projects.subscriptions.acknowledge": {"pubsub.subscriptions.consume"},
}

WAIT_S = 30.0
LISTS = ("machineTypes.aggregatedList", "acceleratorTypes.aggregatedList", "services.skus.list")


def fetched(cloud: GcpCloud) -> Sequence[Offer]:
    """The offers after every region was fetched."""
    cloud.prices.refresh(scaled(WAIT_S))
    return cloud.prices.offers()


def crawls(gce: FakeGce) -> int:
    return gce.calls["machineTypes.aggregatedList"]


def test_offers__come_from_the_table_until_the_first_fetch(gce: FakeGce, new_cloud: Callable[..., GcpCloud]) -> None:
    gce.faults.lost_requests = dict.fromkeys(LISTS, 99)
    cloud = new_cloud()
    offers = cloud.prices.offers()
    assert not crawls(gce) or offers, "offers() does not wait"
    assert {o.zone for o in offers} == {zone for region in gce.regions for zone in ZONES[region]}
    assert {o.instance_type for o in offers} == set(TYPES)
    cloud.prices.refresh(scaled(WAIT_S))
    assert cloud.prices.offers() == offers
    gce.faults.lost_requests = {}


def test_launch__moves_on_from_a_zone_that_lacks_the_type(
    gce: FakeGce, new_cloud: Callable[..., GcpCloud], request_of: Callable[..., LaunchRequest]
) -> None:
    """The type as the table offers it."""
    with FakeGce(regions=("europe-west4",)) as gce:
        cloud = new_cloud(endpoint_url=gce.url)
        for kind in ("c3-standard-8", "a2-highgpu-1g", "n1-highmem-8+t4x1"):
            with pytest.raises(Exception, match=r"does not exist in zone|was not found") as caught:
                cloud.launch(request_of(f"of-{kind[:2]}", kind=kind, zone=SMALL_ZONE))
            fault = cloud.classify(caught.value)
            assert (fault.kind, fault.any_instance_type) == (FaultKind.AVOID_ZONE, False)


def test_offers__are_those_of_every_zone_at_the_regions_price(gce: FakeGce, new_cloud: Callable[..., GcpCloud]) -> None:
    offers = fetched(new_cloud(regions=()))
    assert {offer.region for offer in offers} == set(gce.regions)
    assert {o.zone for o in offers if o.region == "us-east4"} == {f"us-east4-{suffix}" for suffix in "abc"}
    (h100,) = {o.accelerators for o in offers if o.instance_type == "a3-highgpu-8g"}
    assert h100 == ("H100", 8.0)
    spot = {
        (o.region, o.price_per_hour) for o in offers if o.instance_type == "g2-standard-4" and o.market is Market.SPOT
    }
    assert len(spot) == len(gce.regions)


def test_offers__are_those_that_a_zone_has(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    with FakeGce(regions=("europe-west4",)) as gce:
        for name, value in gce.environ.items():
            monkeypatch.setenv(name, value)
        section = yaml.safe_load(gce.config)["gcp"]
        cloud = GcpCloud(InMemoryOfferCache(clock), GcpSettings.from_mapping(section), clock)
        small = [o for o in fetched(cloud) if o.zone == SMALL_ZONE]
        assert small
        assert not [o for o in small if o.accelerators]
        assert [o for o in cloud.prices.offers() if o.instance_type == "n1-highmem-8+t4x1"]


def test_offers__include_types_that_the_table_lacks(gce: FakeGce, cloud: GcpCloud) -> None:
    offers = fetched(cloud)
    elsewhere = {o.instance_type for o in offers if o.zone != NEW_ZONE}
    assert {"n1-highmem-8", "n1-highmem-8+p4x1"} < elsewhere - set(TYPES)
    new = [o for o in offers if o.zone == NEW_ZONE and o.instance_type not in TYPES]
    assert {o.instance_type for o in new} - elsewhere == {
        *("a3-highgpu-1g", "a3-megagpu-8g", "a4-highgpu-8g", "c3-standard-8", "n2-highmem-96", "n4-standard-2"),
        "t2d-standard-4",
    }
    sizes = {o.instance_type: (o.vcpus, o.memory_gib, o.accelerators) for o in new}
    assert sizes["a3-highgpu-1g"] == (26, 234, ("H100", 1))
    assert sizes["a4-highgpu-8g"] == (224, 3968, ("B200", 8))
    assert sizes["n1-highmem-16+p4x2"] == (16, 104, ("P4", 2))
    assert sizes["n2-highmem-96"] == (96, 768, None)
    assert not {o.instance_type for o in offers} & {one.name for one in NOT_OFFERED}


def test_offers__have_googles_list_prices(gce: FakeGce, cloud: GcpCloud) -> None:
    offers = fetched(cloud)
    for one in offers:
        reported = billing.price(one.instance_type, one.region, one.market)
        assert one.price_per_hour == pytest.approx(reported, abs=2e-6), one
    (l4,) = {o.on_demand_price_per_hour for o in offers if (o.instance_type, o.region) == ("g2-standard-4", "us-east4")}
    assert l4 == pytest.approx(1.125 * (4 * 0.024988 + 16 * 0.002927 + 0.56004), abs=1e-5)
    assert any("list prices" in note for note in cloud.notes())
    markets = {o.market for o in offers if o.instance_type == "a3-highgpu-1g"}
    assert markets == {Market.SPOT}, "Google does not offer it on demand"
    (b200,) = [o for o in offers if o.instance_type == "a4-highgpu-8g"]
    assert b200.price_per_hour < b200.on_demand_price_per_hour == pytest.approx(8 * 16.11)


def test_offers__fall_back_to_the_table_without_the_price_list(
    gce: FakeGce, cloud: GcpCloud, clock: ManualClock
) -> None:
    gce.faults.prices_away = True
    offers = fetched(cloud)
    assert {o.instance_type for o in offers} == set(TYPES)
    for one in offers:
        table = spot_price if one.market is Market.SPOT else on_demand_price
        assert one.price_per_hour == table(TYPES[one.instance_type], one.region)
    assert all(one.table_priced == set(TYPES) for one in cloud.prices.fetched().values())
    (note,) = [note for note in cloud.notes() if "from the built-in table" in note]
    assert "SERVICE_DISABLED" in note
    assert "gcloud services enable cloudbilling.googleapis.com" in note
    gce.faults.prices_away = False
    clock.advance(MAX_AGE_S)
    assert {o.instance_type for o in fetched(cloud)} > set(TYPES)
    assert not [note for note in cloud.notes() if "from the built-in table" in note]
    assert not any(one.table_priced for one in cloud.prices.fetched().values())


def test_offers__are_read_page_by_page_with_the_fields_in_use(gce: FakeGce, cloud: GcpCloud) -> None:
    gce.faults.page_size = 40
    offers = fetched(cloud)
    assert crawls(gce) > 4 * len(gce.regions)
    assert gce.calls["services.skus.list"] > 4
    assert {o.zone for o in offers} == {zone for region in gce.regions for zone in ZONES[region]}
    assert {o.instance_type for o in offers} > set(TYPES)
    assert max(gce.response_bytes[method] for method in LISTS) < 40 * 400, "Google sends a kilobyte and more for each"


def test_price_list__is_fetched_once_for_all_regions(gce: FakeGce, cloud: GcpCloud, clock: ManualClock) -> None:
    fetched(cloud)
    pages = gce.calls["services.skus.list"]
    assert pages == math.ceil(len(list(billing.skus())) / gce.faults.page_size)
    for age_s, read in ((MAX_AGE_S, 1), (PRICE_LIST_MAX_AGE_S, 2)):
        clock.advance(age_s)
        cloud.prices.refresh(scaled(WAIT_S))
        assert gce.calls["services.skus.list"] == read * pages
    assert crawls(gce) == 3 * len(gce.regions)


def test_offers__of_a_region_stay_while_a_zone_is_unreachable(
    gce: FakeGce, cloud: GcpCloud, clock: ManualClock
) -> None:
    first = fetched(cloud)
    gce.faults.unreachable = frozenset({"us-central1-c"})
    clock.advance(MAX_AGE_S)
    cloud.prices.refresh(scaled(WAIT_S))
    assert any("us-central1-c are temporarily unknown" in note for note in cloud.notes())
    assert set(cloud.prices.offers()) == set(first)


def test_launch__of_a_type_that_the_table_lacks_works(
    gce: FakeGce, cloud: GcpCloud, request_of: Callable[..., LaunchRequest]
) -> None:
    """Uses a boot disk and a network interface that its series supports."""
    new = {o.instance_type: o for o in fetched(cloud) if o.zone == NEW_ZONE and o.instance_type not in TYPES}
    for number, offer in enumerate(new.values()):
        request = request_of(f"t{number}", zone=NEW_ZONE, kind=offer.instance_type, disk_tier="low")
        (machine,) = cloud.launch(replace(request, offer=offer))
        assert machine.instance_type == offer.instance_type
    assert {one.instance_type for one in gce.purchases()} == set(new)


def test_offers__are_fetched_once_until_they_are_old(
    gce: FakeGce, cloud: GcpCloud, new_cloud: Callable[..., GcpCloud], clock: ManualClock
) -> None:
    first = fetched(cloud)
    once = crawls(gce)
    assert once == len(gce.regions)
    assert cloud.prices.offers() is first
    assert new_cloud().prices.offers() == first, "a new daemon finds them in the database"
    assert crawls(gce) == once
    clock.advance(MAX_AGE_S)
    assert cloud.prices.offers() is first, "offers() does not wait for the new ones"
    wait_until(lambda: crawls(gce) == 2 * once and cloud.prices.offers() is not first)
    assert cloud.prices.offers() == first


def test_offers__raise_denied_access_with_a_hint(gce: FakeGce, cloud: GcpCloud, clock: ManualClock) -> None:
    gce.faults.deny = "accessNotConfigured"
    with pytest.raises(Exception, match="has not been used") as caught:
        fetched(cloud)
    fault = cloud.classify(caught.value)
    assert (fault.kind, fault.reason) == (FaultKind.AVOID_CLOUD, Reason.BAD_CREDENTIALS)
    assert "gcloud services enable" in fault.message
    gce.faults.deny = None
    clock.advance(RETRY_AFTER_FAILURE_S)
    assert fetched(cloud)


def test_role__allows_exactly_the_calls_that_are_made(
    gce: FakeGce, new_cloud: Callable[..., GcpCloud], request_of: Callable[..., LaunchRequest]
) -> None:
    """Makes every call that the code can make, and checks that the code uses no other method of a client."""
    url = gce.subscription("perdure")
    cloud = new_cloud(interruption_queues=(url,))
    fetched(cloud)
    (machine,) = cloud.launch(request_of())
    cloud.list_owned("ctl")
    cloud.interrupt("us-central1", machine.id, notice_s=None)
    cloud.describe("us-central1", [machine.id])
    cloud.console_output("us-central1", machine.id)
    cloud.terminate("us-central1", [machine.id])
    stop_and_start(cloud, request_of("t2", market=Market.ON_DEMAND))
    gce.faults.operation_s = 0.01  # it waits for the operations on rules
    open_and_close(cloud, request_of("t3"))
    gce.pubsub.send(url.partition("/v1/")[2], b"{}")
    (queue,) = cloud.notice_queues()
    queue.delete(queue.receive())
    cloud.check()
    named = yaml.safe_load(ROLE.read_text())["includedPermissions"]
    allowed = [
        name for name in named if not name.startswith("storage.")
    ]  # those: tests/unit/controller/buckets/test_gcs.py
    assert len(allowed) == len(set(allowed))
    assert set(allowed) == set().union(*(NEEDS[method] for method in gce.calls))
    package = Path(__file__).parents[3] / "controller/perdure/controller/clouds/gcp"
    # The calls of a controller host's setup are checked in test_controller_host.py.
    code = "".join(
        path.read_text() for path in package.rglob("*.py") if path.name not in ("controller_host.py", "iam.py")
    )
    named = set(re.findall(r"onnections\.(\w+)\.(\w+)\(request=", code.replace("\n", "")))
    camel = {f"{_camel(client)}.{_camel(method.removesuffix('_unary'))}" for client, method in named}
    camel |= {"services.skus.list"} if "PATH, query=" in code else set()
    camel |= {f"{what}.aggregatedList" for what in re.findall(r"_list\(connections, region, \"(\w+)\"", code)}
    camel |= {f"projects.subscriptions.{what}" for what in re.findall(r"self\._call\(\"(\w+)\"", code)}
    called = {name.replace("zoneOperations", "operations") for name in gce.calls if name not in OF_PORTS}
    assert camel == called - {MAY}
    assert {
        one.name for one in required_permissions(GcpSettings(service_account="any", interruption_queues=(url,)))
    } == set(allowed)


def _camel(name: str) -> str:
    first, *more = name.split("_")
    return first + "".join(map(str.title, more))
