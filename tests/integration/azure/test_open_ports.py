"""Ports of clusters on Azure: a network security group with exactly these, on the interfaces of their machines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.protocol import EventuallyConsistent, LaunchRequest, OpenPorts
from perdure.recovery.market.unavailable import FaultKind
from support.fakes.azure import FakeAzure
from support.fakes.azure.holdings import FIREWALLS
from support.helpers.timing import wait_until

REGION = "eastus"
NAME = "perdure-abcdef01-cluster-7"
WRITE = f"{FIREWALLS}/write"

Launch = Callable[..., Any]


def open_ports(azure: FakeAzure) -> dict[str, list[str]]:
    """The security groups, and the ports that each lets the internet connect to."""
    return {
        group["name"]: rule["properties"]["destinationPortRanges"]
        for group in azure.holdings.of(FIREWALLS)
        for rule in group["properties"]["securityRules"]
        if (rule["properties"]["access"], rule["properties"]["sourceAddressPrefix"]) == ("Allow", "Internet")
    }


@pytest.fixture
def launch(cloud: AzureCloud, request_of: Callable[..., LaunchRequest]) -> Launch:
    def launch(token: str, *ranges: tuple[int, int]) -> Any:
        """Launch again while the security group is not ready, as the controller does."""
        request = request_of(token, open_ports=OpenPorts(NAME, ranges) if ranges else None)

        def attempt() -> Any:
            with contextlib.suppress(CloudRejected):
                return cloud.launch(request)

        return wait_until(attempt, "the machine", 10)

    return launch


def firewall_of(azure: FakeAzure, machine: str) -> str | None:
    (nic,) = azure.body_of(machine)["properties"]["networkProfile"]["networkInterfaceConfigurations"]
    group = nic["properties"].get("networkSecurityGroup")
    return group["id"].rpartition("/")[2] if group else None


def test_launch__opens_exactly_the_ports_that_are_asked_for(azure: FakeAzure, launch: Launch) -> None:
    (machine,) = launch("t1", (8080, 8080), (9000, 9010))
    assert open_ports(azure) == {NAME: ["8080", "9000-9010"]}
    assert firewall_of(azure, machine.id) == NAME


def test_launch__waits_for_the_security_group(
    azure: FakeAzure, cloud: AzureCloud, request_of: Callable[..., LaunchRequest], launch: Launch
) -> None:
    azure.faults.delay_s = 0.5
    with pytest.raises(CloudRejected, match="not ready yet") as caught:
        cloud.launch(request_of("t1", open_ports=OpenPorts(NAME, ((8080, 8080),))))
    assert cloud.classify(caught.value).kind is FaultKind.AMBIGUOUS, "it is repeated with its token"
    assert not azure.purchases()
    assert launch("t1", (8080, 8080))


def test_launch__for_other_ports_changes_the_group_and_for_the_same_does_not(azure: FakeAzure, launch: Launch) -> None:
    launch("t1", (8080, 8080), (9000, 9010))
    launch("t2", (8080, 8080), (22, 22))
    assert open_ports(azure) == {NAME: ["8080", "22"]}
    writes = azure.calls[WRITE]
    launch("t3", (8080, 8080), (22, 22))
    assert azure.calls[WRITE] == writes


def test_launch__under_a_role_of_an_earlier_version_leaves_the_ports_closed_and_says_so(
    azure: FakeAzure, cloud: AzureCloud, launch: Launch
) -> None:
    azure.faults.forbid = {f"{FIREWALLS}/{verb}" for verb in ("read", "write", "delete")}
    (machine,) = launch("t1", (8080, 8080))
    assert firewall_of(azure, machine.id) is None
    assert any("deploy/iam/azure-controller.json" in note for note in cloud.notes())
    cloud.close_ports(REGION, NAME)
    azure.faults.forbid = set()
    launch("t2", (8080, 8080))
    assert open_ports(azure) == {NAME: ["8080"]}
    assert not any("ports" in note for note in cloud.notes())


def test_launch__without_ports_opens_none(azure: FakeAzure, launch: Launch) -> None:
    (machine,) = launch("t1")
    assert open_ports(azure) == {}
    assert firewall_of(azure, machine.id) is None


def test_public_addresses__are_those_of_the_machines_interfaces(cloud: AzureCloud, launch: Launch) -> None:
    (machine,) = launch("t1", (8080, 8080))
    addresses = wait_until(lambda: cloud.public_addresses(REGION, [machine.id, "nobody"]), "the address", 10)
    assert addresses.keys() == {machine.id}
    assert addresses[machine.id].startswith("127.78.")


def test_close__waits_for_the_machines_and_is_repeatable(azure: FakeAzure, cloud: AzureCloud, launch: Launch) -> None:
    (machine,) = launch("t1", (8080, 8080))
    with pytest.raises(EventuallyConsistent):
        cloud.close_ports(REGION, NAME)
    cloud.terminate(REGION, [machine.id])
    wait_until(lambda: not azure.living(), "the end of the machine", 10)
    for _ in range(2):
        cloud.close_ports(REGION, NAME)
    assert wait_until(lambda: not open_ports(azure), "the end of the security group", 10)
    cloud.close_ports(REGION, "perdure-abcdef01-cluster-8")
