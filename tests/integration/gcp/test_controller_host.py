"""The resources of a controller host in Google Cloud. Every call is checked against Google's API descriptions."""

from __future__ import annotations

import gzip
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.controller.clouds.base.protocol import (
    Disk,
    EventuallyConsistent,
    HostRequirements,
    Instance,
    LaunchRequest,
)
from perdure.controller.clouds.gcp.cloud import GcpCloud
from perdure.controller.clouds.gcp.iam import service_account
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.clouds.pricing.cache import InMemoryOfferCache
from perdure.controller.hosting import provision
from perdure.controller.hosting.retry import CannotHost
from perdure.controller.runtime.clock import ManualClock
from perdure.recovery.market.view import Market
from perdure.recovery.reasons import Reason
from perdure.sdk.connection import hosted_controller
from perdure.sdk.connection.hosted_controller import Hosted
from support.fakes.gce import FakeGce
from support.fakes.gce.fleet import PROJECT

pytestmark = pytest.mark.long

IAM = Path(__file__).parents[3] / "deploy" / "iam"
REGION, ZONE = "us-central1", "us-central1-a"
EMAIL = f"perdure-controller@{PROJECT}.iam.gserviceaccount.com"
# What each call needs: cloud.google.com/compute/docs/reference/rest/v1 and …/iam/docs/reference/rest/v1.
NEEDS = {
    "disks.insert": {"compute.disks.create", "compute.disks.setLabels"},
    "disks.get": {"compute.disks.get"},
    "disks.aggregatedList": {"compute.disks.list"},
    "disks.delete": {"compute.disks.delete"},
    "addresses.insert": {"compute.addresses.create", "compute.addresses.createInternal", "compute.subnetworks.use"},
    "addresses.get": {"compute.addresses.get"},
    "addresses.delete": {"compute.addresses.delete", "compute.addresses.deleteInternal"},
    "firewalls.insert": {"compute.firewalls.create", "compute.networks.updatePolicy"},
    "firewalls.get": {"compute.firewalls.get"},
    "firewalls.patch": {"compute.firewalls.update", "compute.networks.updatePolicy"},
    "firewalls.delete": {"compute.firewalls.delete", "compute.networks.updatePolicy"},
    "instances.insert": {
        *("compute.instances.create", "compute.instances.setLabels", "compute.instances.setMetadata"),
        *("compute.instances.setTags", "compute.instances.setServiceAccount", "compute.images.useReadOnly"),
        *("compute.disks.create", "compute.disks.setLabels", "compute.disks.use"),
        *("compute.addresses.use", "compute.addresses.useInternal", "iam.serviceAccounts.actAs"),
        *("compute.networks.use", "compute.networks.useExternalIp"),
        *("compute.subnetworks.use", "compute.subnetworks.useExternalIp"),
    },
    "instances.list": {"compute.instances.list"},
    "zoneOperations.list": {"compute.zoneOperations.list"},
    "zoneOperations.wait": {"compute.zoneOperations.get"},
    "regionOperations.wait": {"compute.regionOperations.get"},
    "globalOperations.wait": {"compute.globalOperations.get"},
    "projects.serviceAccounts.get": {"iam.serviceAccounts.get"},
    "projects.serviceAccounts.create": {"iam.serviceAccounts.create"},
    "projects.roles.get": {"iam.roles.get"},
    "projects.roles.create": {"iam.roles.create"},
    "projects.roles.patch": {"iam.roles.update"},
    "projects.getIamPolicy": {"resourcemanager.projects.getIamPolicy"},
    "projects.setIamPolicy": {"resourcemanager.projects.setIamPolicy"},
}


@pytest.fixture
def launch_host(cloud: GcpCloud, request_of: Callable[..., LaunchRequest]) -> Callable[..., tuple[Instance, Disk]]:
    def make(
        token: str = "t1", *, callers: str = "192.0.2.0/24", role: str = "perdure-controller", on: GcpCloud = cloud
    ) -> tuple[Instance, Disk]:
        disk = on.state_disk("ctl", region=REGION, zone=ZONE, gib=20)
        needs = HostRequirements("print('the program')", "/var/lib/perdure", disk, 8443, callers, role)
        request = request_of(token, zone=ZONE, kind="e2-standard-2", market=Market.ON_DEMAND, disk_gib=20)
        return on.launch_host(request, needs), disk

    return make


def permissions(file: str) -> set[str]:
    return set(yaml.safe_load((IAM / file).read_text())["includedPermissions"])


def machine(gce: FakeGce, instance: Instance) -> dict[str, Any]:
    reported = gce.ask("GET", f"zones/{ZONE}/instances", filter=f'name = "{instance.id.partition("/")[2]}"')
    item: dict[str, Any] = reported["items"][0]
    return item


def test_host__has_an_account_an_open_port_and_its_disk(
    launch_host: Callable[..., tuple[Instance, Disk]], cloud: GcpCloud, gce: FakeGce
) -> None:
    instance, disk = launch_host()
    reported = machine(gce, instance)
    (rule,), (address,), (made,) = (gce.holdings.of(kind) for kind in ("firewalls", "addresses", "disks"))
    assert (rule["sourceRanges"], rule["allowed"]) == (["192.0.2.0/24"], [{"IPProtocol": "tcp", "ports": ["8443"]}])
    assert rule["targetTags"] == reported["tags"]["items"]
    assert reported["networkInterfaces"][0]["accessConfigs"][0]["natIP"] == address["address"]
    (now,) = cloud.describe(REGION, [instance.id])
    assert cloud.attach_disk(now, disk) == address["address"]
    boot, state = reported["disks"]
    assert (boot["autoDelete"], state["autoDelete"], state["deviceName"]) == (True, False, "perdure-state")
    assert made["users"] == [reported["selfLink"]]
    assert reported["scheduling"]["provisioningModel"] == "STANDARD"
    assert reported["scheduling"]["automaticRestart"]
    assert [one["email"] for one in reported["serviceAccounts"]] == [EMAIL]

    config = yaml.safe_load({one["key"]: one["value"] for one in reported["metadata"]["items"]}["user-data"])
    files = {one["path"]: gzip.decompress(b64decode(one["content"])).decode() for one in config["write_files"]}
    assert files["/opt/perdure/installer.py"] == "print('the program')"
    assert config["runcmd"][0] == ["/opt/perdure/mount_state.sh", "/dev/disk/by-id/google-perdure-state",
                                   "/var/lib/perdure"]  # fmt: skip
    assert "startup-script" not in str(reported["metadata"])


def test_allowed_callers__replace_the_default(launch_host: Callable[..., tuple[Instance, Disk]], gce: FakeGce) -> None:
    launch_host()
    launch_host(callers="198.51.100.7/32")
    (rule,) = gce.holdings.of("firewalls")
    assert rule["sourceRanges"] == ["198.51.100.7/32"]


def test_host_address__is_private_without_public_addresses(
    launch_host: Callable[..., tuple[Instance, Disk]], new_cloud: Callable[..., GcpCloud], gce: FakeGce
) -> None:
    instance, _ = launch_host(on=new_cloud(external_ip=False, network="training", subnets={REGION: "a"}))
    (address,) = gce.holdings.of("addresses")
    assert (address["addressType"], address["subnetwork"]) == ("INTERNAL", f"regions/{REGION}/subnetworks/a")
    (interface,) = machine(gce, instance)["networkInterfaces"]
    assert "accessConfigs" not in interface
    assert gce.holdings.of("firewalls")[0]["network"] == "global/networks/training"


def test_host_account__has_the_listed_permissions_and_an_existing_one_is_kept(
    launch_host: Callable[..., tuple[Instance, Disk]], gce: FakeGce
) -> None:
    gce.iam.accounts["mine@perdure-test"] = {"email": "mine@perdure-test"}
    gce.iam.accounts[f"theirs@{EMAIL.partition('@')[2]}"] = {"description": "of an admin"}
    before = gce.iam.policy
    with pytest.raises(Exception, match="name a service account"):
        launch_host(role="Perdure controller!")
    instance, _ = launch_host(role="mine@perdure-test")
    assert [one["email"] for one in machine(gce, instance)["serviceAccounts"]] == ["mine@perdure-test"]
    with pytest.raises(EventuallyConsistent, match="is still attached to perdure-t1-0"):
        launch_host("t2", role="theirs")
    assert (gce.iam.policy, gce.iam.roles) == (before, {})


def test_new_account__gets_its_role_without_removing_other_bindings(cloud: GcpCloud, gce: FakeGce) -> None:
    connections, policy = cloud._connections, gce.iam.policy
    gce.iam.accounts[EMAIL] = {"description": service_account.MADE}
    somebody = {"role": "roles/viewer", "members": ["user:a@example.com"], "condition": {"expression": "true"}}
    gce.iam.policy = {**policy, "version": 3, "bindings": [*policy["bindings"], somebody]}
    assert service_account.account(connections, "perdure-controller") == EMAIL
    assert gce.iam.grants(EMAIL) == permissions("gcp-controller.yaml")
    assert somebody in gce.iam.policy["bindings"]
    (role,) = gce.iam.roles.values()
    role["includedPermissions"] = ["compute.zones.list"]
    changes = gce.calls["projects.setIamPolicy"]
    service_account.account(connections, "perdure-controller")
    assert gce.iam.grants(EMAIL) == permissions("gcp-controller.yaml")
    assert gce.calls["projects.setIamPolicy"] == changes, "it was granted before"
    role["deleted"] = True
    with pytest.raises(Exception, match="gcloud iam roles undelete"):
        service_account.account(connections, "perdure-controller")


def test_new_account__is_awaited(
    launch_host: Callable[..., tuple[Instance, Disk]], cloud: GcpCloud, gce: FakeGce
) -> None:
    gce.faults.accounts_listed_slowly = 1
    with pytest.raises(EventuallyConsistent, match="does not exist"):
        launch_host()
    service_account.account(cloud._connections, "perdure-controller")
    gce.faults.accounts_listed_slowly = 1
    with pytest.raises(EventuallyConsistent, match="was not found"):
        launch_host()
    assert launch_host()[0].id == gce.living()[0].id


def test_failure__is_reported_by_its_cause(
    launch_host: Callable[..., tuple[Instance, Disk]], cloud: GcpCloud, gce: FakeGce
) -> None:
    gce.faults.launch_errors[ZONE] = "ZONE_RESOURCE_POOL_EXHAUSTED"
    with pytest.raises(Exception, match="does not have enough resources") as caught:
        launch_host()
    assert cloud.classify(caught.value).reason is Reason.NO_CAPACITY
    assert not gce.living()
    gce.faults.launch_errors.clear()
    gce.faults.lost_answers["instances.insert"] = 1
    with pytest.raises(Exception, match=r"aborted|closed"):
        launch_host()
    assert launch_host()[0].id == gce.living()[0].id, "the same name returned the machine of the first launch"


def test_disk__may_be_in_a_zone_that_does_not_respond(cloud: GcpCloud, gce: FakeGce) -> None:
    gce.faults.unreachable = frozenset({"us-east4-a"})
    made = cloud.state_disk("ctl", region=REGION, zone=ZONE, gib=20)
    gce.faults.unreachable = frozenset({"us-central1-b"})
    with pytest.raises(Exception, match="the disks of zones"):
        cloud.state_disk("other", region=REGION, zone=ZONE, gib=20)
    assert [one["name"] for one in gce.holdings.of("disks")] == [made.id]


def test_setup_permissions__are_exactly_those_listed(
    launch_host: Callable[..., tuple[Instance, Disk]], cloud: GcpCloud, gce: FakeGce
) -> None:
    gce.faults.operation_s = 0.02
    instance, _ = launch_host()
    launch_host(callers="198.51.100.0/24")
    (role,) = gce.iam.roles.values()
    role["includedPermissions"] = []
    service_account.account(cloud._connections, "perdure-controller")
    cloud.list_owned("ctl")
    cloud.terminate(REGION, [instance.id])
    del gce.calls["instances.delete"], gce.calls["instances.aggregatedList"]  # which the controller may, too
    cloud.release("ctl", REGION)
    cloud.remove_disk("ctl", REGION)
    listed, besides = permissions("gcp-up.yaml"), permissions("gcp-controller.yaml")
    needed = set().union(*(NEEDS[method] for method in gce.calls))
    assert set(gce.calls) == set(NEEDS), "every call that the code can make, made"
    assert needed - besides == listed
    assert not listed & besides


def test_lost_host__keeps_its_address_if_it_cannot_be_replaced(
    launch_host: Callable[..., tuple[Instance, Disk]], gce: FakeGce, tmp_path: Path
) -> None:
    """Its nodes connect to that address until it can be replaced."""
    (tmp_path / "config.yaml").write_text(gce.config)
    (lost, disk), output = launch_host(), list[str]()
    (address,) = gce.holdings.of("addresses")
    url = f"https://{address['address']}:1"  # where nothing listens
    up = Hosted(
        hosted_controller.UP, "ctl", "gcp/us-central1", 1, "gcp", REGION, ZONE, instance=lost.id, url=url, token="t"
    )
    hosted_controller.save(tmp_path, up)
    GcpCloud(InMemoryOfferCache(ManualClock()), GcpSettings(endpoint_url=gce.url), ManualClock()).terminate(
        REGION, [lost.id]
    )
    gce.faults.launch_errors[ZONE] = "ZONE_RESOURCE_POOL_EXHAUSTED"
    requested = provision.HostRequest("gcp", REGION, ZONE, "e2-standard-2")
    with pytest.raises(
        CannotHost, match=r"launching the machine: .*not have enough resources.*; choose another --instance-type"
    ):
        provision.up(tmp_path, requested, ManualClock(), output.append)
    assert f"the disk {disk.id} and the address {url} are kept" in output[-1]
    assert gce.holdings.of("addresses") == [address | {"users": [], "status": "RESERVED"}]
    assert hosted_controller.serving_endpoint(tmp_path) == up.endpoint, "no command starts another one here"

    provision.down(tmp_path, ManualClock(), output.append)
    assert not gce.holdings.of("addresses")
    with pytest.raises(CannotHost):
        provision.up(tmp_path, requested, ManualClock(), output.append)
    assert not gce.holdings.of("addresses"), "no node connects to it any more"
    provision.down(tmp_path, ManualClock(), output.append, delete_disk=True)
    assert not gce.holdings.of("disks")
    assert hosted_controller.load(tmp_path) is None
