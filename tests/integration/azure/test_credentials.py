"""Credentials of Azure, and the permissions that the role needs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.azure.iam.permissions import required_permissions
from perdure.controller.clouds.azure.sdk.connections import CREDENTIALS_RETRY_S
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.pricing.cache import InMemoryOfferCache
from perdure.controller.runtime.clock import ManualClock
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market
from perdure.recovery.reasons import Reason
from support.fakes.azure import FakeAzure
from support.fakes.azure.server import SUBSCRIPTION
from support.helpers.launch_requests import open_and_close, stop_and_start

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
ROLE = ROOT / "deploy" / "iam" / "azure-controller.json"
# Not called, but required for a machine with its own disk, interface and address, and perhaps an identity.
IMPLIED = {
    "Microsoft.Compute/disks/write",
    "Microsoft.Compute/disks/delete",
    "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action",
    "Microsoft.Network/networkInterfaces/join/action",
    "Microsoft.Network/networkInterfaces/read",
    "Microsoft.Network/networkInterfaces/write",
    "Microsoft.Network/networkInterfaces/delete",
    "Microsoft.Network/networkSecurityGroups/join/action",
    "Microsoft.Network/publicIPAddresses/join/action",
    "Microsoft.Network/publicIPAddresses/read",
    "Microsoft.Network/publicIPAddresses/write",
    "Microsoft.Network/publicIPAddresses/delete",
    "Microsoft.Network/virtualNetworks/subnets/join/action",
}


def test_unusable__accepts_valid_credentials(cloud: AzureCloud) -> None:
    assert cloud.unusable() is None


def test_unusable__reports_a_wrong_secret_and_checks_again(
    cloud: AzureCloud, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as wrong:
        wrong.setenv("AZURE_CLIENT_SECRET", "another")
        why = cloud.unusable()
        assert why is not None
        assert "AADSTS7000215" in why
        assert "another" not in why
    assert cloud.unusable() == why, "the result is cached for a while"
    clock.advance(CREDENTIALS_RETRY_S)
    assert cloud.unusable() is None


def test_unusable__needs_a_subscription(azure: FakeAzure, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    section = {name: value for name, value in azure.section.items() if name != "subscription"}
    cloud = AzureCloud(InMemoryOfferCache(clock), AzureSettings.from_mapping(section), clock)
    assert "azure.subscription" in str(cloud.unusable())
    monkeypatch.setenv("AZURE_SUBSCRIPTION_ID", SUBSCRIPTION)
    assert cloud.unusable() is None


@pytest.mark.parametrize("code", ["AuthorizationFailed", "InvalidAuthenticationToken"])
def test_list_owned__reports_denied_access_with_a_hint(
    azure: FakeAzure, cloud: AzureCloud, request_of: Callable[..., LaunchRequest], code: str
) -> None:
    azure.faults.deny = code
    for call in (lambda: cloud.launch(request_of()), lambda: cloud.list_owned("ctl")):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the SDK's
            call()
        fault = cloud.classify(caught.value)
        assert (fault.kind, fault.reason) == (FaultKind.AVOID_CLOUD, Reason.BAD_CREDENTIALS)


def test_role__allows_exactly_the_calls_that_are_made(
    azure: FakeAzure, cloud: AzureCloud, request_of: Callable[..., LaunchRequest]
) -> None:
    """Makes every call that the code can make, and checks that the code uses no other operation of the SDK."""
    cloud.prices.refresh(30.0)
    (machine,) = cloud.launch(request_of())
    cloud.describe("eastus", [machine.id])
    cloud.console_output("eastus", machine.id)
    cloud.list_owned("ctl")
    cloud.interrupt("eastus", machine.id, notice_s=None)
    cloud.terminate("eastus", [machine.id])
    stop_and_start(cloud, request_of("t2", market=Market.ON_DEMAND))
    open_and_close(cloud, request_of("t3"))
    cloud.check()
    cloud.rehearse()
    named = json.loads(ROLE.read_text())["Actions"]
    # Checked in tests/unit/controller/buckets/test_azure.py, and in test_notice_queue.py for data actions.
    allowed = [name for name in named if "Microsoft.Storage/" not in name]
    assert len(allowed) == len(set(allowed))
    assert set(allowed) == (set(azure.calls) - {"prices"}) | IMPLIED, "anybody may ask for prices"
    assert {one.name for one in required_permissions(AzureSettings(identity="any"))} == set(allowed)
    # The calls of a controller host's setup are checked in test_controller_host.py.
    package = ROOT / "controller/perdure/controller/clouds/azure"
    code = "".join(
        path.read_text() for path in package.rglob("*.py") if path.name not in ("controller_host.py", "iam.py")
    )
    assert set(re.findall(r"\bmachines\.(\w+)\(", code)) == {
        "begin_create_or_update",
        "begin_deallocate",
        "begin_delete",
        "begin_start",
        "begin_update",
        "get",
        "list",
        "retrieve_boot_diagnostics_data",
        "simulate_eviction",
    }
    assert set(re.findall(r"_connections\.call\(\"(\w+)\"", code)) == {"GET", "PUT"}
