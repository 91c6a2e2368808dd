"""Launches over HTTPS: the requests to Azure, and its failures."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.azure.sdk.connections import AzureConnections
from perdure.controller.clouds.base.protocol import VISIBLE_WITHIN_S, Fault, InstanceState, LaunchRequest
from perdure.controller.runtime.clock import ManualClock
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market
from perdure.recovery.reasons import Reason
from support.fakes.azure import FakeAzure
from support.fakes.azure.arm import subnets_of
from support.fakes.azure.server import SUBSCRIPTION

pytestmark = pytest.mark.long

Requests = Callable[..., LaunchRequest]
WRITE, DELETE = "Microsoft.Compute/virtualMachines/write", "Microsoft.Compute/virtualMachines/delete"


def refused(cloud: AzureCloud, request: LaunchRequest) -> Fault:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the SDK's
        cloud.launch(request)
    return cloud.classify(caught.value)


def interface_of(body: dict[str, Any]) -> dict[str, Any]:
    (nic,) = body["properties"]["networkProfile"]["networkInterfaceConfigurations"]
    return dict(nic["properties"])


def address_of(body: dict[str, Any]) -> dict[str, Any]:
    return dict(interface_of(body)["ipConfigurations"][0]["properties"])


def test_launch__requests_the_machine_of_the_offer(azure: FakeAzure, cloud: AzureCloud, request_of: Requests) -> None:
    labels = {"team": "vision", "k8s.io/app": "x", "perdure:job": "mine"}
    (machine,) = cloud.launch(request_of(disk_gib=300, disk_tier="best", labels=labels))
    body = azure.body_of(machine.id)
    properties = body["properties"]
    assert (body["location"], body["zones"], properties["hardwareProfile"]["vmSize"]) == (
        "eastus",
        ["1"],
        "Standard_F2s_v2",
    )
    assert (properties["priority"], properties["evictionPolicy"]) == ("Spot", "Delete")
    assert properties["billingProfile"] == {"maxPrice": -1}
    disk = properties["storageProfile"]["osDisk"]
    assert (disk["diskSizeGB"], disk["managedDisk"]["storageAccountType"]) == (300, "Premium_LRS")
    assert body["tags"]["team"] == "vision"
    assert body["tags"]["k8s.io_app"] == "x", "a tag's name holds no slash"
    assert body["tags"]["perdure:job"] == "7", "a user's label does not replace ours"
    program = base64.b64decode(properties["osProfile"]["customData"]).decode()
    assert program.startswith("#!/usr/bin/env python3")
    assert '"PERDURE_RANK": "0"' in program


def test_launch__creates_resources_that_end_with_the_machine_and_blocks_inbound_traffic(
    azure: FakeAzure, cloud: AzureCloud, request_of: Requests
) -> None:
    (machine,) = cloud.launch(request_of())
    body = azure.body_of(machine.id)
    public = address_of(body)["publicIPAddressConfiguration"]
    parts = (interface_of(body), body["properties"]["storageProfile"]["osDisk"], public["properties"])
    assert [part["deleteOption"] for part in parts] == ["Delete"] * 3
    assert public["sku"]["name"] == "Standard", "the kind that is closed unless a security group opens it"
    assert "networkSecurityGroup" not in interface_of(body)
    (network,) = azure.networks().values()
    (subnet,) = subnets_of(network)
    assert subnet["defaultOutboundAccess"] is False
    assert "networkSecurityGroup" not in subnet


def test_launch__on_demand_is_not_spot(azure: FakeAzure, cloud: AzureCloud, request_of: Requests) -> None:
    (machine,) = cloud.launch(request_of(market=Market.ON_DEMAND))
    assert not {"evictionPolicy", "billingProfile", "priority"} & azure.body_of(machine.id)["properties"].keys()


def test_launch__uses_the_configured_subnet_identity_and_image(
    azure: FakeAzure, new_cloud: Callable[..., AzureCloud], request_of: Requests
) -> None:
    own = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/own/providers"
    subnet, identity = f"{own}/Microsoft.Network/virtualNetworks/v/subnets/s", f"{own}/Microsoft.ManagedIdentity/i"
    cloud = new_cloud(subnets={"eastus": subnet}, identity=identity, images={"eastus": "a:b:c:1.0"})
    (machine,) = cloud.launch(request_of())
    body = azure.body_of(machine.id)
    assert address_of(body) == {"primary": True, "subnet": {"id": subnet}}
    assert not azure.networks()
    assert body["identity"]["userAssignedIdentities"] == {identity: {}}
    assert body["properties"]["storageProfile"]["imageReference"]["version"] == "1.0"
    fault = refused(cloud, request_of("t2", image_id="skypilot:gpu-ubuntu-2204"))
    assert fault.kind is FaultKind.GIVE_UP
    assert "skypilot:gpu-ubuntu-2204" in fault.message


def test_launch__looks_up_a_region_once(azure: FakeAzure, cloud: AzureCloud, request_of: Requests) -> None:
    cloud.launch(request_of(num_nodes=3))
    before = dict(azure.calls)
    cloud.launch(request_of("t2", num_nodes=2))
    assert {name: n - before.get(name, 0) for name, n in azure.calls.items() if n > before.get(name, 0)} == {WRITE: 2}


def test_launch__creates_a_deleted_group_again(azure: FakeAzure, cloud: AzureCloud, request_of: Requests) -> None:
    cloud.launch(request_of())
    azure.forget_networks()
    assert refused(cloud, request_of("t2")).kind is FaultKind.AMBIGUOUS
    assert cloud.launch(request_of("t2"))


def test_launch__names_the_setting_of_a_missing_subnet(
    new_cloud: Callable[..., AzureCloud], request_of: Requests
) -> None:
    subnet = (
        f"/subscriptions/{SUBSCRIPTION}/resourceGroups/none/providers/Microsoft.Network/virtualNetworks/v/subnets/s"
    )
    fault = refused(new_cloud(subnets={"eastus": subnet}), request_of())
    assert (fault.kind, fault.reason) == (FaultKind.AVOID_REGION, Reason.BAD_REQUEST)
    assert "azure.subnets.eastus" in fault.message


def test_launch__is_idempotent_after_a_lost_response(azure: FakeAzure, cloud: AzureCloud, request_of: Requests) -> None:
    azure.faults.lost_answers[WRITE] = 1
    assert refused(cloud, request_of()).kind is FaultKind.AMBIGUOUS
    (purchases,) = azure.purchases()
    assert [one.id for one in cloud.launch(request_of())] == [purchases.id]
    assert len(azure.purchases()) == 1


def test_launch__keeps_other_machines_after_a_lost_response(
    azure: FakeAzure, cloud: AzureCloud, request_of: Requests
) -> None:
    azure.faults.lost_answers[WRITE] = 1
    assert refused(cloud, request_of(num_nodes=3)).kind is FaultKind.AMBIGUOUS
    assert [one.rank for one in cloud.launch(request_of(num_nodes=3))] == [0, 1, 2]
    assert (len(azure.purchases()), azure.calls[DELETE]) == (3, 0)


def test_launch__does_not_take_a_listed_part_for_the_whole(
    azure: FakeAzure, cloud: AzureCloud, request_of: Requests
) -> None:
    azure.faults.lost_requests[WRITE] = 2
    assert refused(cloud, request_of(num_nodes=3)).kind is FaultKind.AMBIGUOUS
    assert len(cloud.list_owned("ctl")) == 1
    assert [one.rank for one in cloud.launch(request_of(num_nodes=3))] == [0, 1, 2]
    assert len(azure.purchases()) == 3


def test_launch__is_idempotent_across_daemons(
    azure: FakeAzure, new_cloud: Callable[[], AzureCloud], request_of: Requests
) -> None:
    first = new_cloud().launch(request_of(num_nodes=2))
    again = new_cloud().launch(request_of(num_nodes=2))
    assert [one.id for one in again] == [one.id for one in first]
    assert len(azure.purchases()) == 2


def test_launch__does_not_retry(azure: FakeAzure, cloud: AzureCloud, request_of: Requests) -> None:
    cloud.launch(request_of())
    azure.faults.throttle = 1
    fault = refused(cloud, request_of("t2"))
    assert (fault.kind, fault.reason, fault.retry_after_s) == (FaultKind.RETRY_LATER, Reason.THROTTLED, 7.0)
    assert azure.calls[WRITE] == 2
    azure.faults.deny = "MissingSubscriptionRegistration"
    assert refused(cloud, request_of("t3")).kind is FaultKind.AVOID_CLOUD
    assert azure.calls[WRITE] == 3, "and nothing is registered behind anybody's back"


def test_launch__terminates_the_others_after_a_rejection(
    azure: FakeAzure, cloud: AzureCloud, request_of: Requests
) -> None:
    azure.faults.capacity["eastus-1"] = 3
    azure.faults.delay_s = 3600.0
    assert refused(cloud, request_of(num_nodes=5)).reason is Reason.NO_CAPACITY
    assert {one.state for one in cloud.list_owned("ctl")} == {InstanceState.ENDING}


def test_describe__reports_missing_capacity_after_acceptance(
    azure: FakeAzure, cloud: AzureCloud, request_of: Requests
) -> None:
    azure.faults.late["eastus-1"] = "ZonalAllocationFailed"
    (machine,) = cloud.launch(request_of())
    (seen,) = cloud.describe("eastus", [machine.id])
    assert (seen.state, seen.gone_reason) == (InstanceState.ENDING, Reason.NO_CAPACITY)
    (listed,) = cloud.list_owned("ctl")
    assert listed.state is InstanceState.ENDING, "so that the sweep has it looked up"
    cloud.terminate("eastus", [machine.id])
    (gone,) = cloud.describe("eastus", [machine.id])
    assert gone.state is InstanceState.GONE
    assert not cloud.list_owned("ctl")


def test_describe__is_pending_until_the_machine_runs(azure: FakeAzure, cloud: AzureCloud, request_of: Requests) -> None:
    azure.faults.delay_s = 3600.0
    (machine,) = cloud.launch(request_of())
    (seen,) = cloud.describe("eastus", [machine.id])
    assert machine.state is seen.state is InstanceState.PENDING
    assert [one.state for one in cloud.list_owned("ctl")] == [InstanceState.PENDING]


def test_describe__includes_new_machines_that_are_not_listed_yet(
    azure: FakeAzure, cloud: AzureCloud, request_of: Requests, clock: ManualClock
) -> None:
    azure.faults.listing_delay_s = 3600
    (machine,) = cloud.launch(request_of())
    assert not cloud.list_owned("ctl")
    assert cloud.describe("eastus", [machine.id]) == [machine]
    assert not cloud.describe("northeurope", [machine.id])
    clock.advance(VISIBLE_WITHIN_S)
    assert [one.state for one in cloud.describe("eastus", [machine.id])] == [InstanceState.GONE]


def test_list_owned__reads_every_page(azure: FakeAzure, cloud: AzureCloud, request_of: Requests) -> None:
    first, second = cloud.launch(request_of(num_nodes=8)), cloud.launch(request_of("t2", zone="northeurope-1"))
    assert {one.id for one in cloud.list_owned("ctl")} == {one.id for one in (*first, *second)}


def test_describe__counts_an_unrequested_end_as_preemption(
    azure: FakeAzure, cloud: AzureCloud, request_of: Requests, clock: ManualClock
) -> None:
    (spot,), (kept,) = cloud.launch(request_of()), cloud.launch(request_of("t2", market=Market.ON_DEMAND))
    cloud.list_owned("ctl")
    azure.evict(spot.id)
    azure.delete_by_hand(kept.id)
    clock.advance(5)
    gone = {one.id: one for one in cloud.describe("eastus", [spot.id, kept.id])}
    assert {one.state for one in gone.values()} == {InstanceState.GONE}
    assert {id: one.gone_reason for id, one in gone.items()} == {
        spot.id: Reason.PREEMPTED,
        kept.id: Reason.MACHINE_STOPPED,
    }
    assert gone[spot.id].ended_at == clock.now()


def test_launch__does_not_apply_a_spot_quota_to_on_demand(
    azure: FakeAzure, cloud: AzureCloud, request_of: Requests
) -> None:
    azure.faults.launch_errors["eastus-1", Market.SPOT] = "OperationNotAllowed"
    fault = refused(cloud, request_of())
    assert (fault.kind, fault.reason, fault.any_instance_type) == (FaultKind.AVOID_REGION, Reason.QUOTA, True)
    assert cloud.launch(request_of("t2", market=Market.ON_DEMAND))


def test_name_of__replaces_tokens_that_are_invalid_names(
    azure: FakeAzure, cloud: AzureCloud, request_of: Requests
) -> None:
    names = [cloud.launch(request_of(token))[0].id for token in ("x" * 80, "with space", "-leading")]
    assert all(len(name) <= 64 and name.startswith("pd-") for name in names)
    assert len(set(names)) == 3


def test_fake_azure__reports_operations_as_the_sdk_polls_them(
    azure: FakeAzure, cloud: AzureCloud, request_of: Requests, clock: ManualClock
) -> None:
    """The SDK's poller understands the operations of the fake."""
    cloud.launch(request_of())
    client = AzureConnections(cloud.settings, clock).client()
    reported = dict(azure.body_of(client.virtual_machines.list("perdure-eastus").next().name or ""))
    made = client.virtual_machines.begin_create_or_update("perdure-eastus", "by-hand", reported, polling_interval=0)
    assert made.result().name == "by-hand"
    azure.faults.late["eastus-1"] = "AllocationFailed"
    failing = client.virtual_machines.begin_create_or_update("perdure-eastus", "late", reported, polling_interval=0)
    with pytest.raises(Exception, match="AllocationFailed") as caught:
        failing.result()
    assert cloud.classify(caught.value).kind is FaultKind.AVOID_REGION
    client.virtual_machines.begin_delete("perdure-eastus", "late", polling_interval=0).result()
