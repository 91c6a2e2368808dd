"""The fake Azure rejects what the real one rejects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.azure.machines import launch_request
from perdure.controller.clouds.azure.sdk.connections import AzureConnections
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.runtime.clock import ManualClock
from perdure.recovery.market.view import Market
from support.fakes.azure import FakeAzure, validation
from support.fakes.azure.responses import Invalid

pytestmark = pytest.mark.long


@pytest.fixture
def body(request_of: Callable[..., LaunchRequest]) -> dict[str, Any]:
    return launch_request.virtual_machine(request_of(), 0, AzureSettings(), subnet="/subscriptions/s", name="pd-1-0")


def put(body: dict[str, Any], path: str, value: object) -> None:
    *names, last = path.split(".")
    for name in names:
        body = body[int(name) if name.isdecimal() else name]
    if value is None:
        del body[last]
    else:
        body[last] = value


@pytest.mark.parametrize(
    ("path", "value", "reported"),
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
def test_fake_azure__validates_bodies_by_the_sdk_models(
    body: dict[str, Any], path: str, value: object, reported: str
) -> None:
    validation.virtual_machine(body)
    put(body, path, value)
    with pytest.raises(Invalid, match=reported):
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
def test_fake_azure__rejects_what_the_models_allow_but_azure_does_not(
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
    client = AzureConnections(cloud.settings, clock).client()
    with pytest.raises(Exception, match=code):
        client.virtual_machines.begin_create_or_update("perdure-eastus", "other", body, polling=False)


def test_fake_azure__evicts_only_spot_machines(cloud: AzureCloud, request_of: Callable[..., LaunchRequest]) -> None:
    (machine,) = cloud.launch(request_of(market=Market.ON_DEMAND))
    with pytest.raises(Exception, match="OperationNotAllowed"):
        cloud.interrupt("eastus", machine.id, notice_s=None)
