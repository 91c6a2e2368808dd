"""The tests' own Azure refuses what the real one would: else nothing that passes against it would mean much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fake_azure import FakeAzure, validation
from fake_azure.answers import Invalid
from perdure.controller.clock import ManualClock
from perdure.controller.clouds.azure import launching
from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.azure.connections import Connections
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.base import LaunchRequest
from perdure.recovery.market import Market


@pytest.fixture
def body(request_of: Callable[..., LaunchRequest]) -> dict[str, Any]:
    return launching.virtual_machine(request_of(), 0, AzureSettings(), subnet="/subscriptions/s", name="hf-1-0")


def put(body: dict[str, Any], path: str, value: object) -> None:
    *names, last = path.split(".")
    for name in names:
        body = body[int(name) if name.isdecimal() else name]
    if value is None:
        del body[last]
    else:
        body[last] = value


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("properties.prority", "Spot", "Could not find member 'prority'"),
        ("properties.priority", "Cheap", "'Cheap'"),
        ("properties.provisioningState", "Succeeded", "read-only"),
        ("properties.billingProfile.maxPrice", "-1", "no float"),
        ("properties.storageProfile.osDisk.deleteOption", "Keep", "'Keep'"),
        ("properties.storageProfile.osDisk.diskSizeGB", "100", "no int"),
        ("properties.storageProfile.osDisk.createOption", None, "createOption' is missing"),
        ("properties.networkProfile.networkApiVersion", "2026-01-01", "'2026-01-01'"),
        ("properties.networkProfile.networkInterfaceConfigurations", {}, "no list"),
        ("properties.networkProfile.networkInterfaceConfigurations.0.name", None, "name' is missing"),
        ("tags", {"a": 1}, "no str"),
        ("zones", "1", "no list"),
        ("location", None, "location' is missing"),
    ],
)
def test_bodies_are_held_to_the_models_of_the_sdk(body: dict[str, Any], path: str, value: object, told: str) -> None:
    validation.virtual_machine(body)
    put(body, path, value)
    with pytest.raises(Invalid, match=told):
        validation.virtual_machine(body)


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("properties.hardwareProfile.vmSize", "Standard_X1", "InvalidParameter"),
        ("zones", ["4"], "InvalidAvailabilityZone"),
        ("properties.priority", "Regular", "EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines"),
        ("properties.osProfile.linuxConfiguration.ssh", None, "InvalidParameter"),
    ],
)
def test_what_models_do_not_tell_is_refused_too(
    azure: FakeAzure,
    cloud: AzureCloud,
    request_of: Callable[..., LaunchRequest],
    clock: ManualClock,
    path: str,
    value: object,
    code: str,
) -> None:
    (machine,) = cloud.launch(request_of())
    body = azure.body_of(machine.id)
    put(body, path, value)
    client = Connections(cloud.settings, clock).client()
    with pytest.raises(Exception, match=code):
        client.virtual_machines.begin_create_or_update("perdure-eastus", "other", body, polling=False)


def test_only_spot_machines_are_evicted(cloud: AzureCloud, request_of: Callable[..., LaunchRequest]) -> None:
    (machine,) = cloud.launch(request_of(market=Market.ON_DEMAND))
    with pytest.raises(Exception, match="OperationNotAllowed"):
        cloud.interrupt("eastus", machine.id, notice_s=None)
