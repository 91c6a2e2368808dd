"""What a controller's own machine needs in Google Cloud: every call is held to Google's descriptions of its APIs."""

from __future__ import annotations

import gzip
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fake_gce import FakeGce
from fake_gce.fleet import PROJECT
from perdure.controller.clock import ManualClock
from perdure.controller.clouds.base import Disk, Instance, LaunchRequest, NotYet, Standing
from perdure.controller.clouds.gcp import accounts
from perdure.controller.clouds.gcp.cloud import GcpCloud
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.clouds.offercache import InMemory
from perdure.controller.hosting import bringing
from perdure.controller.hosting.asking import CannotHost
from perdure.recovery.market import Market
from perdure.recovery.reasons import Reason
from perdure.sdk import hosted
from perdure.sdk.hosted import Hosted

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
def stand(cloud: GcpCloud, request_of: Callable[..., LaunchRequest]) -> Callable[..., tuple[Instance, Disk]]:
    def make(
        token: str = "t1", *, callers: str = "192.0.2.0/24", role: str = "perdure-controller", on: GcpCloud = cloud
    ) -> tuple[Instance, Disk]:
        disk = on.state_disk("ctl", region=REGION, zone=ZONE, gib=20)
        needs = Standing("print('the program')", "/var/lib/perdure", disk, 8443, callers, role)
        request = request_of(token, zone=ZONE, kind="e2-standard-2", market=Market.ON_DEMAND, disk_gib=20)
        return on.stand(request, needs), disk

    return make


def permissions(file: str) -> set[str]:
    return set(yaml.safe_load((IAM / file).read_text())["includedPermissions"])


def machine(gce: FakeGce, instance: Instance) -> dict[str, Any]:
    told = gce.ask("GET", f"zones/{ZONE}/instances", filter=f'name = "{instance.id.partition("/")[2]}"')
    found: dict[str, Any] = told["items"][0]
    return found


def test_a_machine_with_an_account_an_open_port_and_its_disk(
    stand: Callable[..., tuple[Instance, Disk]], cloud: GcpCloud, gce: FakeGce
) -> None:
    instance, disk = stand()
    told = machine(gce, instance)
    (rule,), (address,), (made,) = (gce.holdings.of(kind) for kind in ("firewalls", "addresses", "disks"))
    assert (rule["sourceRanges"], rule["allowed"]) == (["192.0.2.0/24"], [{"IPProtocol": "tcp", "ports": ["8443"]}])
    assert rule["targetTags"] == told["tags"]["items"]
    assert told["networkInterfaces"][0]["accessConfigs"][0]["natIP"] == address["address"]
    (now,) = cloud.describe(REGION, [instance.id])
    assert cloud.settle(now, disk) == address["address"]
    boot, state = told["disks"]
    assert (boot["autoDelete"], state["autoDelete"], state["deviceName"]) == (True, False, "perdure-state")
    assert made["users"] == [told["selfLink"]]
    assert told["scheduling"]["provisioningModel"] == "STANDARD"
    assert told["scheduling"]["automaticRestart"]
    assert [one["email"] for one in told["serviceAccounts"]] == [EMAIL]

    config = yaml.safe_load({one["key"]: one["value"] for one in told["metadata"]["items"]}["user-data"])
    files = {one["path"]: gzip.decompress(b64decode(one["content"])).decode() for one in config["write_files"]}
    assert files["/opt/perdure/caretaker.py"] == "print('the program')"
    assert config["runcmd"][0] == ["/opt/perdure/mount_state.sh", "/dev/disk/by-id/google-perdure-state",
                                   "/var/lib/perdure"]  # fmt: skip
    assert "startup-script" not in str(told["metadata"])


def test_other_callers_are_let_in_instead(stand: Callable[..., tuple[Instance, Disk]], gce: FakeGce) -> None:
    stand()
    stand(callers="198.51.100.7/32")
    (rule,) = gce.holdings.of("firewalls")
    assert rule["sourceRanges"] == ["198.51.100.7/32"]


def test_where_machines_have_no_public_address_the_controllers_is_of_the_network(
    stand: Callable[..., tuple[Instance, Disk]], new_cloud: Callable[..., GcpCloud], gce: FakeGce
) -> None:
    instance, _ = stand(on=new_cloud(external_ip=False, network="training", subnets={REGION: "a"}))
    (address,) = gce.holdings.of("addresses")
    assert (address["addressType"], address["subnetwork"]) == ("INTERNAL", f"regions/{REGION}/subnetworks/a")
    (interface,) = machine(gce, instance)["networkInterfaces"]
    assert "accessConfigs" not in interface
    assert gce.holdings.of("firewalls")[0]["network"] == "global/networks/training"


def test_its_account_may_do_what_is_listed_and_one_that_was_there_is_left_alone(
    stand: Callable[..., tuple[Instance, Disk]], gce: FakeGce
) -> None:
    gce.iam.accounts["mine@perdure-test"] = {"email": "mine@perdure-test"}
    gce.iam.accounts[f"theirs@{EMAIL.partition('@')[2]}"] = {"description": "of an admin"}
    before = gce.iam.policy
    with pytest.raises(Exception, match="name a service account"):
        stand(role="Perdure controller!")
    instance, _ = stand(role="mine@perdure-test")
    assert [one["email"] for one in machine(gce, instance)["serviceAccounts"]] == ["mine@perdure-test"]
    with pytest.raises(NotYet, match="is that of perdure-t1-0 still"):
        stand("t2", role="theirs")
    assert (gce.iam.policy, gce.iam.roles) == (before, {})


def test_an_account_that_is_made_gets_its_role_beside_what_others_were_granted(cloud: GcpCloud, gce: FakeGce) -> None:
    connections, policy = cloud._connections, gce.iam.policy
    gce.iam.accounts[EMAIL] = {"description": accounts.MADE}
    somebody = {"role": "roles/viewer", "members": ["user:a@example.com"], "condition": {"expression": "true"}}
    gce.iam.policy = {**policy, "version": 3, "bindings": [*policy["bindings"], somebody]}
    assert accounts.account(connections, "perdure-controller") == EMAIL
    assert gce.iam.grants(EMAIL) == permissions("gcp-controller.yaml")
    assert somebody in gce.iam.policy["bindings"]
    (role,) = gce.iam.roles.values()
    role["includedPermissions"] = ["compute.zones.list"]
    changes = gce.calls["projects.setIamPolicy"]
    accounts.account(connections, "perdure-controller")
    assert gce.iam.grants(EMAIL) == permissions("gcp-controller.yaml")
    assert gce.calls["projects.setIamPolicy"] == changes, "it was granted before"
    role["deleted"] = True
    with pytest.raises(Exception, match="gcloud iam roles undelete"):
        accounts.account(connections, "perdure-controller")


def test_an_account_that_is_told_slowly_is_waited_for(
    stand: Callable[..., tuple[Instance, Disk]], cloud: GcpCloud, gce: FakeGce
) -> None:
    gce.faults.accounts_told_slowly = 1
    with pytest.raises(NotYet, match="does not exist"):
        stand()
    accounts.account(cloud._connections, "perdure-controller")
    gce.faults.accounts_told_slowly = 1
    with pytest.raises(NotYet, match="was not found"):
        stand()
    assert stand()[0].id == gce.living()[0].id


def test_what_fails_is_told_by_its_cause(
    stand: Callable[..., tuple[Instance, Disk]], cloud: GcpCloud, gce: FakeGce
) -> None:
    gce.faults.refuse[ZONE] = "ZONE_RESOURCE_POOL_EXHAUSTED"
    with pytest.raises(Exception, match="does not have enough resources") as caught:
        stand()
    assert cloud.classify(caught.value).reason is Reason.NO_CAPACITY
    assert not gce.living()
    gce.faults.refuse.clear()
    gce.faults.lost_answers["instances.insert"] = 1
    with pytest.raises(Exception, match=r"aborted|closed"):
        stand()
    assert stand()[0].id == gce.living()[0].id, "its name found what it had bought"


def test_a_zone_that_does_not_answer_may_have_the_disk(cloud: GcpCloud, gce: FakeGce) -> None:
    gce.faults.unreachable = frozenset({"us-east4-a"})
    made = cloud.state_disk("ctl", region=REGION, zone=ZONE, gib=20)
    gce.faults.unreachable = frozenset({"us-central1-b"})
    with pytest.raises(Exception, match="does not tell which disks"):
        cloud.state_disk("other", region=REGION, zone=ZONE, gib=20)
    assert [one["name"] for one in gce.holdings.of("disks")] == [made.id]


def test_who_brings_it_up_needs_what_is_listed_and_nothing_more(
    stand: Callable[..., tuple[Instance, Disk]], cloud: GcpCloud, gce: FakeGce
) -> None:
    gce.faults.operation_s = 0.02
    instance, _ = stand()
    stand(callers="198.51.100.0/24")
    (role,) = gce.iam.roles.values()
    role["includedPermissions"] = []
    accounts.account(cloud._connections, "perdure-controller")
    cloud.list_owned("ctl")
    cloud.terminate(REGION, [instance.id])
    del gce.calls["instances.delete"], gce.calls["instances.aggregatedList"]  # which the controller may, too
    cloud.leave("ctl", REGION)
    cloud.remove_disk("ctl", REGION)
    listed, besides = permissions("gcp-up.yaml"), permissions("gcp-controller.yaml")
    needed = set().union(*(NEEDS[method] for method in gce.calls))
    assert set(gce.calls) == set(NEEDS), "every call that the code can make, made"
    assert needed - besides == listed
    assert not listed & besides


def test_the_address_of_a_controller_that_was_lost_is_kept_when_it_can_not_be_replaced(
    stand: Callable[..., tuple[Instance, Disk]], gce: FakeGce, tmp_path: Path
) -> None:
    """Its nodes call there, until it can."""
    (tmp_path / "config.yaml").write_text(gce.config)
    (lost, disk), said = stand(), list[str]()
    (address,) = gce.holdings.of("addresses")
    url = f"https://{address['address']}:1"  # where nothing listens
    up = Hosted(hosted.UP, "ctl", "gcp/us-central1", 1, "gcp", REGION, ZONE, instance=lost.id, url=url, token="t")
    hosted.write(tmp_path, up)
    GcpCloud(InMemory(ManualClock()), GcpSettings(endpoint_url=gce.url), ManualClock()).terminate(REGION, [lost.id])
    gce.faults.refuse[ZONE] = "ZONE_RESOURCE_POOL_EXHAUSTED"
    wish = bringing.Wish("gcp", REGION, ZONE, "e2-standard-2")
    with pytest.raises(
        CannotHost, match=r"buying a machine: .*not have enough resources.*; choose another --instance-type"
    ):
        bringing.up(tmp_path, wish, ManualClock(), said.append)
    assert f"the disk {disk.id} and the address {url} stay" in said[-1]
    assert gce.holdings.of("addresses") == [address | {"users": [], "status": "RESERVED"}]
    assert hosted.serving(tmp_path) == up.endpoint, "no command starts another one here"

    bringing.down(tmp_path, ManualClock(), said.append)
    assert not gce.holdings.of("addresses")
    with pytest.raises(CannotHost):
        bringing.up(tmp_path, wish, ManualClock(), said.append)
    assert not gce.holdings.of("addresses"), "nobody calls there any more"
    bringing.down(tmp_path, ManualClock(), said.append, with_disk=True)
    assert not gce.holdings.of("disks")
    assert hosted.read(tmp_path) is None
