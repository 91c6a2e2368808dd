"""Virtual machines of Azure, parsed."""

from __future__ import annotations

from typing import Any

import pytest
from azure.mgmt.compute.models import VirtualMachine

from perdure.controller.clouds.azure.machines import parse
from perdure.controller.clouds.base.protocol import InstanceState, Owner
from perdure.recovery.reasons import Reason

FAILED = "ProvisioningState/failed/"
TAGS = {
    "perdure:controller": "ctl",
    "perdure:job": "7",
    "perdure:task": "0",
    "perdure:generation": "2",
    "perdure:token": "t",
    "perdure:rank": "3",
}


def machine(provisioning: str, *statuses: str, tags: dict[str, str] | None = None, **more: Any) -> VirtualMachine:
    properties = {
        "provisioningState": provisioning,
        "timeCreated": "2026-01-02T03:04:05.5Z",
        "hardwareProfile": {"vmSize": "Standard_D2s_v5"},
    }
    if statuses:
        properties["instanceView"] = {"statuses": [{"code": code} for code in statuses]}
    about = {"location": "eastus", "zones": ["2"], "name": "t-3", "tags": TAGS if tags is None else tags}
    return VirtualMachine({**about, "properties": properties, **more})


@pytest.mark.parametrize(
    ("machine", "state", "reason"),
    [
        (machine("Creating"), InstanceState.PENDING, None),
        (machine("Creating", "ProvisioningState/creating"), InstanceState.PENDING, None),
        (machine("Creating", "ProvisioningState/creating", "PowerState/running"), InstanceState.RUNNING, None),
        (machine("Succeeded"), InstanceState.RUNNING, None),
        (machine("Updating", "PowerState/running"), InstanceState.RUNNING, None),
        (machine("Succeeded", "PowerState/stopped"), InstanceState.ENDING, Reason.MACHINE_STOPPED),
        (machine("Succeeded", "PowerState/deallocated"), InstanceState.STOPPED, Reason.MACHINE_STOPPED),
        (machine("Deleting", "PowerState/running"), InstanceState.ENDING, None),
        (machine("Failed"), InstanceState.ENDING, None),
        (machine("Failed", f"{FAILED}AllocationFailed"), InstanceState.ENDING, Reason.NO_CAPACITY),
        (machine("Failed", f"{FAILED}OSProvisioningTimedOut", "PowerState/running"), InstanceState.RUNNING, None),
    ],
    ids=str,
)
def test_instance__maps_states(machine: VirtualMachine, state: InstanceState, reason: Reason | None) -> None:
    instance = parse.instance(machine, "azure")
    assert instance is not None
    assert (instance.state, instance.gone_reason) == (state, reason)


def test_instance__reads_every_field() -> None:
    instance = parse.instance(machine("Succeeded", location="East US"), "azure")
    assert instance is not None
    assert (instance.id, instance.rank, instance.owner) == ("t-3", 3, Owner("ctl", 7, 0, 2, "t"))
    assert (instance.region, instance.zone, instance.instance_type) == ("eastus", "eastus-2", "Standard_D2s_v5")
    assert instance.launched_at == 1767323045.5
    without = parse.instance(machine("Succeeded", zones=None), "azure")
    assert without is not None
    assert without.zone == "eastus"


@pytest.mark.parametrize("missing", TAGS)
def test_instance__ignores_a_machine_without_all_tags(missing: str) -> None:
    assert (
        parse.instance(machine("Succeeded", tags={name: v for name, v in TAGS.items() if name != missing}), "azure")
        is None
    )
