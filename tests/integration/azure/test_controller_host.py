"""The resources of a controller host in Azure. Bodies are checked against the SDK's models and the REST reference."""

from __future__ import annotations

import gzip
import json
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.azure.iam import managed_identity
from perdure.controller.clouds.base.protocol import (
    Disk,
    EventuallyConsistent,
    HostRequirements,
    Instance,
    LaunchRequest,
)
from perdure.recovery.market.view import Market
from support.fakes.azure import FakeAzure
from support.fakes.azure.holdings import ADDRESSES, ASSIGNMENTS, DISKS, FIREWALLS, IDENTITIES, INTERFACES, ROLES
from support.fakes.azure.server import SUBSCRIPTION

pytestmark = pytest.mark.long

IAM = Path(__file__).parents[3] / "deploy" / "iam"
REGION, ZONE = "eastus", "eastus-1"
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/perdure-{REGION}"
OWN = "/subscriptions/s/resourceGroups/own/providers"
# Not called, but required: a reference to a resource joins or assigns it.
IMPLIED = {
    "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action",
    *(f"Microsoft.Network/{kind}/join/action" for kind in ("networkInterfaces", "networkSecurityGroups")),
    *(f"Microsoft.Network/{kind}/join/action" for kind in ("publicIPAddresses", "virtualNetworks/subnets")),
}


@pytest.fixture
def launch_host(cloud: AzureCloud, request_of: Callable[..., LaunchRequest]) -> Callable[..., tuple[Instance, Disk]]:
    def make(
        token: str = "t1", *, callers: str = "192.0.2.0/24", role: str = "perdure-controller", on: AzureCloud = cloud
    ) -> tuple[Instance, Disk]:
        disk = on.state_disk("ctl", region=REGION, zone=ZONE, gib=20)
        needs = HostRequirements("print('the program')", "/var/lib/perdure", disk, 8443, callers, role)
        return on.launch_host(request_of(token, zone=ZONE, market=Market.ON_DEMAND, disk_gib=20), needs), disk

    return make


def actions(file: str) -> set[str]:
    return set(json.loads((IAM / file).read_text())["Actions"])


def only(azure: FakeAzure, kind: str) -> dict[str, Any]:
    (resource,) = azure.holdings.of(kind)
    return resource


def test_host__has_an_identity_an_open_port_and_its_disk(
    launch_host: Callable[..., tuple[Instance, Disk]], cloud: AzureCloud, azure: FakeAzure
) -> None:
    instance, disk = launch_host()
    body = azure.body_of(instance.id)
    properties = body["properties"]
    (rule,) = only(azure, FIREWALLS)["properties"]["securityRules"]
    reported = rule["properties"]
    assert (reported["sourceAddressPrefix"], reported["destinationPortRange"], reported["access"]) == (
        *("192.0.2.0/24", "8443", "Allow"),
    )
    interface = only(azure, INTERFACES)
    assert interface["properties"]["networkSecurityGroup"]["id"] == only(azure, FIREWALLS)["id"]
    (used,) = properties["networkProfile"]["networkInterfaces"]
    assert (used["id"], used["properties"]["deleteOption"]) == (interface["id"], "Detach")
    (now,) = cloud.describe(REGION, [instance.id])
    assert cloud.attach_disk(now, disk) == only(azure, ADDRESSES)["properties"]["ipAddress"]
    (state,) = properties["storageProfile"]["dataDisks"]
    assert (state["managedDisk"]["id"], state["deleteOption"]) == (only(azure, DISKS)["id"], "Detach")
    assert (body["zones"], only(azure, DISKS)["zones"]) == (["1"], ["1"])
    assert "priority" not in properties
    assert list(body["identity"]["userAssignedIdentities"]) == [only(azure, IDENTITIES)["id"]]

    config = yaml.safe_load(b64decode(properties["osProfile"]["customData"]))
    files = {one["path"]: gzip.decompress(b64decode(one["content"])).decode() for one in config["write_files"]}
    assert files["/opt/perdure/installer.py"] == "print('the program')"
    device = f"/dev/disk/azure/scsi1/lun{state['lun']},/dev/disk/azure/data/by-lun/{state['lun']}"
    assert config["runcmd"][0] == ["/opt/perdure/mount_state.sh", device, "/var/lib/perdure"]


def test_allowed_callers__replace_the_default(
    launch_host: Callable[..., tuple[Instance, Disk]], azure: FakeAzure
) -> None:
    launch_host()
    with pytest.raises(EventuallyConsistent, match="is still attached to t1-0"):
        launch_host("t2", callers="198.51.100.7/32")
    (rule,) = only(azure, FIREWALLS)["properties"]["securityRules"]
    assert rule["properties"]["sourceAddressPrefix"] == "198.51.100.7/32"


def test_host_address__is_from_the_configured_subnet(
    launch_host: Callable[..., tuple[Instance, Disk]], new_cloud: Callable[..., AzureCloud], azure: FakeAzure
) -> None:
    subnet = f"{OWN}/Microsoft.Network/virtualNetworks/n/subnets/training"
    cloud = new_cloud(subnets={REGION: subnet})
    instance, disk = launch_host(on=cloud)
    (now,) = cloud.describe(REGION, [instance.id])
    (reported,) = only(azure, INTERFACES)["properties"]["ipConfigurations"]
    assert reported["properties"]["subnet"]["id"] == subnet
    assert cloud.attach_disk(now, disk) == reported["properties"]["privateIPAddress"]
    assert not azure.holdings.of(ADDRESSES) + list(azure.networks())


def test_host_identity__has_the_listed_permissions_and_an_existing_one_is_kept(
    launch_host: Callable[..., tuple[Instance, Disk]], cloud: AzureCloud, azure: FakeAzure
) -> None:
    with pytest.raises(Exception, match="name an identity"):
        launch_host(role="perdure controller!")
    own = f"{OWN}/Microsoft.ManagedIdentity/userAssignedIdentities/mine"
    instance, _ = launch_host(role=own)
    assert list(azure.body_of(instance.id)["identity"]["userAssignedIdentities"]) == [own]
    connections = cloud._connections
    theirs = f"{GROUP}/providers/{IDENTITIES}/theirs"
    connections.call("PUT", theirs, managed_identity.IDENTITIES_API, {"location": REGION, "tags": {"of": "an admin"}})
    assert managed_identity.identity(connections, GROUP, REGION, "theirs") == theirs
    assert not azure.holdings.of(ROLES) + azure.holdings.of(ASSIGNMENTS)

    azure.faults.identities_listed_slowly = 1
    with pytest.raises(EventuallyConsistent, match="does not exist in the directory"):
        managed_identity.identity(connections, GROUP, REGION, "perdure-controller")
    for _ in range(2):
        managed_identity.identity(connections, GROUP, REGION, "perdure-controller")
        (granted,) = azure.holdings.grants("perdure-controller")
        assert set(granted["actions"]) == actions("azure-controller.json")
        assert granted["dataActions"]
        only(azure, ROLES)["properties"]["permissions"][0]["actions"] = []  # those of an older version
    assert azure.calls[f"{ASSIGNMENTS}/write"] == 2


def test_failure__is_reported_by_its_cause(
    launch_host: Callable[..., tuple[Instance, Disk]], cloud: AzureCloud, azure: FakeAzure
) -> None:
    azure.faults.launch_errors[ZONE] = "AllocationFailed"
    with pytest.raises(Exception, match="do not have sufficient capacity"):
        launch_host()
    assert not azure.living()
    azure.faults.launch_errors[ZONE] = "ReferencedResourceNotProvisioned"
    with pytest.raises(EventuallyConsistent):
        launch_host()
    azure.faults.launch_errors.clear()
    azure.faults.lost_answers["Microsoft.Compute/virtualMachines/write"] = 1
    with pytest.raises(Exception, match=r"aborted|closed"):
        launch_host()
    assert launch_host()[0].id == azure.living()[0].id, "the same name returned the machine of the first launch"
    with pytest.raises(EventuallyConsistent):
        cloud.remove_disk("ctl", REGION)


def test_deleted_group__is_created_again(cloud: AzureCloud, azure: FakeAzure) -> None:
    cloud.state_disk("ctl", region=REGION, zone=ZONE, gib=20)
    azure.forget_networks()
    cloud.state_disk("other", region=REGION, zone=REGION, gib=20)
    assert azure.networks()
    assert [one.get("zones") for one in azure.holdings.of(DISKS)] == [["1"], None]


def test_setup_permissions__are_exactly_those_listed(
    launch_host: Callable[..., tuple[Instance, Disk]], cloud: AzureCloud, azure: FakeAzure
) -> None:
    instance, disk = launch_host()
    (now,) = cloud.describe(REGION, [instance.id])
    assert cloud.attach_disk(now, disk)
    cloud.terminate(REGION, [instance.id])
    cloud.list_owned("ctl")
    for _ in range(3):  # one after the other
        with pytest.raises(EventuallyConsistent):
            cloud.release("ctl", REGION)
    cloud.release("ctl", REGION)
    with pytest.raises(EventuallyConsistent):
        cloud.remove_disk("ctl", REGION)
    cloud.remove_disk("ctl", REGION)
    listed, besides = actions("azure-up.json"), actions("azure-controller.json")
    assert not listed & besides
    assert (set(azure.calls) | IMPLIED) - besides == listed
