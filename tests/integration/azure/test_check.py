"""What `perdure check` finds out of a subscription."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from fake_azure import FakeAzure
from fake_azure.server import CLIENT
from fake_azure.subscription import family
from perdure.controller.clouds.azure.catalog import TYPES
from perdure.controller.clouds.azure.checking import account
from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.azure.permissions import (
    wanted,
    wanted_of_blobs,
    wanted_of_containers,
    wanted_of_messages,
)
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.checks import Finding, Outcome

ROLE = Path(__file__).parents[3] / "deploy" / "iam" / "azure-controller.json"
BLOBS = "Microsoft.Storage/storageAccounts/blobServices"


def bad(found: Iterable[Finding]) -> list[Finding]:
    return [one for one in found if one.outcome is not Outcome.OK]


def test_a_subscription_that_allows_all_is_told_so_and_nothing_is_bought(azure: FakeAzure, cloud: AzureCloud) -> None:
    found = cloud.check()
    assert not bad(found)
    assert f"application {CLIENT}" in found[0].text
    assert {one.about for one in found} == {"credentials", "permissions", "regions", "quotas"}
    (cores,) = [one for one in found if one.text.startswith("on-demand vCPUs of all sizes")]
    assert "88 of 100 left in eastus" in cores.text
    assert not azure.bought()


def test_what_the_role_lacks_is_named_with_what_it_is_for(
    azure: FakeAzure, cloud: AzureCloud, new_cloud: Callable[..., AzureCloud]
) -> None:
    azure.faults.granted = [
        "Microsoft.Compute/*",
        "microsoft.network/*",
        "Microsoft.Resources/*/read",
        "Microsoft.Storage/*",
        "*/read",
    ]
    azure.faults.taken_away = ["Microsoft.Compute/virtualMachines/simulateEviction/action"]
    lacking = {one.text.partition(" ")[0]: one.outcome for one in bad(cloud.check())}
    assert lacking == {
        "Microsoft.Resources/subscriptions/resourceGroups/write": Outcome.FAILS,
        "Microsoft.Compute/virtualMachines/simulateEviction/action": Outcome.LIMITS,
    }
    with_identity = bad(new_cloud(identity="/subscriptions/x").check())
    assert len(with_identity) == len(lacking) + 1


def test_what_the_role_lacks_of_storage_may_be_given_in_the_account(
    azure: FakeAzure, new_cloud: Callable[..., AzureCloud], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = ["https://acme.queue.core.windows.net/perdure"]
    azure.faults.granted_data = ["Microsoft.Storage/*/blobs/read", "Microsoft.Storage/*/add/action"]
    azure.faults.taken_away = [f"{BLOBS}/generateUserDelegationKey/action"]
    process = "Microsoft.Storage/storageAccounts/queueServices/queues/messages/process/action"
    lacking = {f"{BLOBS}/{name}" for name in ("containers/blobs/write", "containers/blobs/delete")}
    lacking |= {f"{BLOBS}/generateUserDelegationKey/action", process}
    found = {one.text.partition(" ")[0]: one for one in bad(new_cloud(notice_queues=queue).check())}
    assert found.keys() == lacking, "no action, not even all of them, is a data action"
    assert {(one.outcome, one.about) for one in found.values()} == {(Outcome.UNKNOWN, "permissions")}
    monkeypatch.setenv("AZURE_STORAGE_KEY", "a key opens all containers")
    assert [one.text.partition(" ")[0] for one in bad(new_cloud(notice_queues=queue).check())] == [process]
    assert not bad(new_cloud().check())


def test_all_of_the_role_is_looked_for() -> None:
    role = json.loads(ROLE.read_text())
    settings = AzureSettings(identity="any", notice_queues=("any",))
    actions, data = [*wanted(settings), *wanted_of_containers()], [*wanted_of_blobs(), *wanted_of_messages(settings)]
    assert {one.name for one in actions} == set(role["Actions"])
    assert {one.name for one in data} == set(role["DataActions"])


def test_a_quota_of_nothing_is_told_of_spot_and_of_families_with_gpus(azure: FakeAzure, cloud: AzureCloud) -> None:
    h100 = family("Standard_ND96isr_H100_v5")
    for region in azure.regions:
        azure.faults.quotas |= {(region, "lowPriorityCores"): 0, (region, h100): 0, (region, "virtualMachines"): 0}
    assert {one.text for one in bad(cloud.check())} == {
        "spot vCPUs of all sizes: nothing left in any of 2 regions",
        f"on-demand vCPUs of {h100} vCPUs: nothing left in any of 2 regions",
    }


def test_what_a_region_does_not_sell_the_subscription_is_named(azure: FakeAzure, cloud: AzureCloud) -> None:
    azure.faults.closed = {("eastus", size) for size in TYPES}
    azure.faults.closed |= {(f"northeurope-{zone}", "Standard_F2s_v2") for zone in "123"}
    found = cloud.check()
    (nothing,) = bad(found)
    assert (nothing.about, nothing.text) == ("regions", "eastus sells this subscription nothing")
    assert any(one.text.endswith("closed to this subscription: Standard_F2s_v2") for one in found)


def test_whoever_is_not_let_in_is_told_so_of_each(azure: FakeAzure, cloud: AzureCloud) -> None:
    azure.faults.deny = "AuthorizationFailed"
    who, *rest = cloud.check()
    assert who.outcome is Outcome.OK
    assert {(one.about, one.outcome) for one in rest} == {
        (about, Outcome.UNKNOWN) for about in ("permissions", "regions", "quotas")
    }


def test_a_token_that_is_none_of_the_usual_ones_has_no_name() -> None:
    assert account("opaque") == account("a.b.c") == "an account that does not say its name"
