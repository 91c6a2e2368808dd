"""Who may call, and what a role must allow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fake_azure import FakeAzure
from fake_azure.server import SUBSCRIPTION
from perdure.controller.clock import ManualClock
from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.azure.connections import LOOK_FOR_CREDENTIALS_AGAIN_S
from perdure.controller.clouds.azure.permissions import wanted
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.base import LaunchRequest
from perdure.controller.clouds.offercache import InMemory
from perdure.recovery.market import FaultKind
from perdure.recovery.reasons import Reason

ROOT = Path(__file__).parents[3]
ROLE = ROOT / "deploy" / "iam" / "azure-controller.json"
# Never called, but needed for a machine that brings its disk, interface and address, and may have an identity.
IMPLIED = {
    "Microsoft.Compute/disks/write",
    "Microsoft.Compute/disks/delete",
    "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action",
    "Microsoft.Network/networkInterfaces/join/action",
    "Microsoft.Network/networkInterfaces/read",
    "Microsoft.Network/networkInterfaces/write",
    "Microsoft.Network/networkInterfaces/delete",
    "Microsoft.Network/publicIPAddresses/join/action",
    "Microsoft.Network/publicIPAddresses/read",
    "Microsoft.Network/publicIPAddresses/write",
    "Microsoft.Network/publicIPAddresses/delete",
    "Microsoft.Network/virtualNetworks/subnets/join/action",
}


def test_good_credentials_are_enough(cloud: AzureCloud) -> None:
    assert cloud.unusable() is None


def test_a_wrong_secret_is_said_and_looked_at_again(
    cloud: AzureCloud, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as wrong:
        wrong.setenv("AZURE_CLIENT_SECRET", "another")
        why = cloud.unusable()
        assert why is not None
        assert "AADSTS7000215" in why
        assert "another" not in why
    assert cloud.unusable() == why, "nobody is asked again at once"
    clock.advance(LOOK_FOR_CREDENTIALS_AGAIN_S)
    assert cloud.unusable() is None


def test_a_subscription_must_be_named(azure: FakeAzure, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    section = {name: value for name, value in azure.section.items() if name != "subscription"}
    cloud = AzureCloud(InMemory(clock), AzureSettings.from_mapping(section), clock)
    assert "azure.subscription" in str(cloud.unusable())
    monkeypatch.setenv("AZURE_SUBSCRIPTION_ID", SUBSCRIPTION)
    assert cloud.unusable() is None


@pytest.mark.parametrize("code", ["AuthorizationFailed", "InvalidAuthenticationToken"])
def test_whoever_is_not_let_in_is_told_what_to_do(
    azure: FakeAzure, cloud: AzureCloud, request_of: Callable[..., LaunchRequest], code: str
) -> None:
    azure.faults.deny = code
    for call in (lambda: cloud.launch(request_of()), lambda: cloud.list_owned("ctl")):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the SDK's
            call()
        fault = cloud.classify(caught.value)
        assert (fault.kind, fault.reason) == (FaultKind.AVOID_CLOUD, Reason.BAD_CREDENTIALS)


def test_the_role_allows_what_is_called_and_nothing_more(
    azure: FakeAzure, cloud: AzureCloud, request_of: Callable[..., LaunchRequest]
) -> None:
    """Every call that the code can make, made; and no operation of the SDK in the code that was not."""
    cloud.prices.refresh(30.0)
    (machine,) = cloud.launch(request_of())
    cloud.describe("eastus", [machine.id])
    cloud.list_owned("ctl")
    cloud.interrupt("eastus", machine.id, notice_s=None)
    cloud.terminate("eastus", [machine.id])
    cloud.check()
    named = json.loads(ROLE.read_text())["Actions"]
    # Those: tests/unit/storage/test_azure.py, and test_queues.py for a data action.
    allowed = [name for name in named if "Microsoft.Storage/" not in name]
    assert len(allowed) == len(set(allowed))
    assert set(allowed) == (set(azure.calls) - {"prices"}) | IMPLIED, "anybody may ask for prices"
    assert {one.name for one in wanted(AzureSettings(identity="any"))} == set(allowed)
    # What a controller's own machine takes is called by whoever brings it up: test_standing.py.
    package = ROOT / "controller/perdure/controller/clouds/azure"
    code = "".join(path.read_text() for path in package.glob("*.py") if path.name != "standing.py")
    assert set(re.findall(r"\bmachines\.(\w+)\(", code)) == {
        "begin_create_or_update",
        "begin_delete",
        "get",
        "list",
        "simulate_eviction",
    }
    assert set(re.findall(r"_connections\.call\(\"(\w+)\"", code)) == {"GET", "PUT"}
