"""What a controller's own machine needs in Azure: bodies are held to the SDK's models, and to the REST reference."""

from __future__ import annotations

import gzip
import json
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fake_azure import FakeAzure
from fake_azure.holdings import ADDRESSES, ASSIGNMENTS, DISKS, FIREWALLS, IDENTITIES, INTERFACES, ROLES
from fake_azure.server import SUBSCRIPTION
from perdure.controller.clouds.azure import identities
from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.base import Disk, Instance, LaunchRequest, NotYet, Standing
from perdure.recovery.market import Market

IAM = Path(__file__).parents[3] / "deploy" / "iam"
REGION, ZONE = "eastus", "eastus-1"
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/perdure-{REGION}"
OWN = "/subscriptions/s/resourceGroups/own/providers"
# Never called, but needed: what refers to something joins or assigns it.
IMPLIED = {
    "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action",
    *(f"Microsoft.Network/{kind}/join/action" for kind in ("networkInterfaces", "networkSecurityGroups")),
    *(f"Microsoft.Network/{kind}/join/action" for kind in ("publicIPAddresses", "virtualNetworks/subnets")),
}


@pytest.fixture
def stand(cloud: AzureCloud, request_of: Callable[..., LaunchRequest]) -> Callable[..., tuple[Instance, Disk]]:
    def make(
        token: str = "t1", *, callers: str = "192.0.2.0/24", role: str = "perdure-controller", on: AzureCloud = cloud
    ) -> tuple[Instance, Disk]:
        disk = on.state_disk("ctl", region=REGION, zone=ZONE, gib=20)
        needs = Standing("print('the program')", "/var/lib/perdure", disk, 8443, callers, role)
        return on.stand(request_of(token, zone=ZONE, market=Market.ON_DEMAND, disk_gib=20), needs), disk

    return make


def actions(file: str) -> set[str]:
    return set(json.loads((IAM / file).read_text())["Actions"])


def only(azure: FakeAzure, kind: str) -> dict[str, Any]:
    (found,) = azure.holdings.of(kind)
    return found


def test_a_machine_with_an_identity_an_open_port_and_its_disk(
    stand: Callable[..., tuple[Instance, Disk]], cloud: AzureCloud, azure: FakeAzure
) -> None:
    instance, disk = stand()
    body = azure.body_of(instance.id)
    properties = body["properties"]
    (rule,) = only(azure, FIREWALLS)["properties"]["securityRules"]
    told = rule["properties"]
    assert (told["sourceAddressPrefix"], told["destinationPortRange"], told["access"]) == (
        *("192.0.2.0/24", "8443", "Allow"),
    )
    interface = only(azure, INTERFACES)
    assert interface["properties"]["networkSecurityGroup"]["id"] == only(azure, FIREWALLS)["id"]
    (used,) = properties["networkProfile"]["networkInterfaces"]
    assert (used["id"], used["properties"]["deleteOption"]) == (interface["id"], "Detach")
    (now,) = cloud.describe(REGION, [instance.id])
    assert cloud.settle(now, disk) == only(azure, ADDRESSES)["properties"]["ipAddress"]
    (state,) = properties["storageProfile"]["dataDisks"]
    assert (state["managedDisk"]["id"], state["deleteOption"]) == (only(azure, DISKS)["id"], "Detach")
    assert (body["zones"], only(azure, DISKS)["zones"]) == (["1"], ["1"])
    assert "priority" not in properties
    assert list(body["identity"]["userAssignedIdentities"]) == [only(azure, IDENTITIES)["id"]]

    config = yaml.safe_load(b64decode(properties["osProfile"]["customData"]))
    files = {one["path"]: gzip.decompress(b64decode(one["content"])).decode() for one in config["write_files"]}
    assert files["/opt/perdure/caretaker.py"] == "print('the program')"
    device = f"/dev/disk/azure/scsi1/lun{state['lun']}"
    assert config["runcmd"][0] == ["/opt/perdure/mount_state.sh", device, "/var/lib/perdure"]


def test_other_callers_are_let_in_instead(stand: Callable[..., tuple[Instance, Disk]], azure: FakeAzure) -> None:
    stand()
    with pytest.raises(NotYet, match="is that of t1-0 still"):
        stand("t2", callers="198.51.100.7/32")
    (rule,) = only(azure, FIREWALLS)["properties"]["securityRules"]
    assert rule["properties"]["sourceAddressPrefix"] == "198.51.100.7/32"


def test_in_a_subnet_of_the_users_its_address_is_one_of_that(
    stand: Callable[..., tuple[Instance, Disk]], new_cloud: Callable[..., AzureCloud], azure: FakeAzure
) -> None:
    subnet = f"{OWN}/Microsoft.Network/virtualNetworks/n/subnets/training"
    cloud = new_cloud(subnets={REGION: subnet})
    instance, disk = stand(on=cloud)
    (now,) = cloud.describe(REGION, [instance.id])
    (told,) = only(azure, INTERFACES)["properties"]["ipConfigurations"]
    assert told["properties"]["subnet"]["id"] == subnet
    assert cloud.settle(now, disk) == told["properties"]["privateIPAddress"]
    assert not azure.holdings.of(ADDRESSES) + list(azure.networks())


def test_its_identity_may_do_what_is_listed_and_one_that_was_there_is_left_alone(
    stand: Callable[..., tuple[Instance, Disk]], cloud: AzureCloud, azure: FakeAzure
) -> None:
    with pytest.raises(Exception, match="name an identity"):
        stand(role="perdure controller!")
    own = f"{OWN}/Microsoft.ManagedIdentity/userAssignedIdentities/mine"
    instance, _ = stand(role=own)
    assert list(azure.body_of(instance.id)["identity"]["userAssignedIdentities"]) == [own]
    connections = cloud._connections
    theirs = f"{GROUP}/providers/{IDENTITIES}/theirs"
    connections.call("PUT", theirs, identities.IDENTITIES_API, {"location": REGION, "tags": {"of": "an admin"}})
    assert identities.identity(connections, GROUP, REGION, "theirs") == theirs
    assert not azure.holdings.of(ROLES) + azure.holdings.of(ASSIGNMENTS)

    azure.faults.identities_told_slowly = 1
    with pytest.raises(NotYet, match="does not exist in the directory"):
        identities.identity(connections, GROUP, REGION, "perdure-controller")
    for _ in range(2):
        identities.identity(connections, GROUP, REGION, "perdure-controller")
        (granted,) = azure.holdings.grants("perdure-controller")
        assert set(granted["actions"]) == actions("azure-controller.json")
        assert granted["dataActions"]
        only(azure, ROLES)["properties"]["permissions"][0]["actions"] = []  # those of an older version
    assert azure.calls[f"{ASSIGNMENTS}/write"] == 2


def test_what_fails_is_told_by_its_cause(
    stand: Callable[..., tuple[Instance, Disk]], cloud: AzureCloud, azure: FakeAzure
) -> None:
    azure.faults.refuse[ZONE] = "AllocationFailed"
    with pytest.raises(Exception, match="do not have sufficient capacity"):
        stand()
    assert not azure.living()
    azure.faults.refuse[ZONE] = "ReferencedResourceNotProvisioned"
    with pytest.raises(NotYet):
        stand()
    azure.faults.refuse.clear()
    azure.faults.lost_answers["Microsoft.Compute/virtualMachines/write"] = 1
    with pytest.raises(Exception, match=r"aborted|closed"):
        stand()
    assert stand()[0].id == azure.living()[0].id, "its name found what it had bought"
    with pytest.raises(NotYet):
        cloud.remove_disk("ctl", REGION)


def test_a_group_that_somebody_has_deleted_is_made_again(cloud: AzureCloud, azure: FakeAzure) -> None:
    cloud.state_disk("ctl", region=REGION, zone=ZONE, gib=20)
    azure.forget_networks()
    cloud.state_disk("other", region=REGION, zone=REGION, gib=20)
    assert azure.networks()
    assert [one.get("zones") for one in azure.holdings.of(DISKS)] == [["1"], None]


def test_who_brings_it_up_needs_what_is_listed_and_nothing_more(
    stand: Callable[..., tuple[Instance, Disk]], cloud: AzureCloud, azure: FakeAzure
) -> None:
    instance, disk = stand()
    (now,) = cloud.describe(REGION, [instance.id])
    assert cloud.settle(now, disk)
    cloud.terminate(REGION, [instance.id])
    cloud.list_owned("ctl")
    for _ in range(3):  # one after the other
        with pytest.raises(NotYet):
            cloud.leave("ctl", REGION)
    cloud.leave("ctl", REGION)
    with pytest.raises(NotYet):
        cloud.remove_disk("ctl", REGION)
    cloud.remove_disk("ctl", REGION)
    listed, besides = actions("azure-up.json"), actions("azure-controller.json")
    assert not listed & besides
    assert (set(azure.calls) | IMPLIED) - besides == listed
