"""`perdure check` of an Azure subscription."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from perdure.controller.clouds.azure.account_check import account
from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.azure.iam.permissions import (
    blob_permissions,
    container_permissions,
    queue_permissions,
    required_permissions,
)
from perdure.controller.clouds.azure.pricing.catalog import TYPES
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.base.account_checks import Finding, Severity
from support.fakes.azure import FakeAzure
from support.fakes.azure.server import CLIENT
from support.fakes.azure.subscription import family

pytestmark = pytest.mark.long

ROLE = Path(__file__).parents[3] / "deploy" / "iam" / "azure-controller.json"
BLOBS = "Microsoft.Storage/storageAccounts/blobServices"


def bad(findings: Iterable[Finding]) -> list[Finding]:
    return [one for one in findings if one.severity is not Severity.OK]


def test_account_check__passes_and_launches_nothing(azure: FakeAzure, cloud: AzureCloud) -> None:
    findings = cloud.check()
    assert not bad(findings)
    assert f"application {CLIENT}" in findings[0].text
    assert {one.subject for one in findings} == {"credentials", "permissions", "providers", "regions", "quotas"}
    (cores,) = [one for one in findings if one.text.startswith("on-demand vCPUs of all sizes")]
    assert "88 of 100 left in eastus" in cores.text
    assert not azure.purchases()


def test_missing_permission__is_named_with_its_purpose(
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
    lacking = {one.text.partition(" ")[0]: one.severity for one in bad(cloud.check())}
    assert lacking == {
        "Microsoft.Resources/subscriptions/resourceGroups/write": Severity.ERROR,
        "Microsoft.Compute/virtualMachines/simulateEviction/action": Severity.WARNING,
    }
    with_identity = bad(new_cloud(identity="/subscriptions/x").check())
    assert len(with_identity) == len(lacking) + 1


def test_storage_permission__may_be_granted_on_the_storage_account(
    azure: FakeAzure, new_cloud: Callable[..., AzureCloud], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = ["https://acme.queue.core.windows.net/perdure"]
    azure.faults.granted_data = ["Microsoft.Storage/*/blobs/read", "Microsoft.Storage/*/add/action"]
    azure.faults.taken_away = [f"{BLOBS}/generateUserDelegationKey/action"]
    process = "Microsoft.Storage/storageAccounts/queueServices/queues/messages/process/action"
    lacking = {f"{BLOBS}/{name}" for name in ("containers/blobs/write", "containers/blobs/delete")}
    lacking |= {f"{BLOBS}/generateUserDelegationKey/action", process}
    findings = {one.text.partition(" ")[0]: one for one in bad(new_cloud(interruption_queues=queue).check())}
    assert findings.keys() == lacking, "no action, not even all of them, is a data action"
    assert {(one.severity, one.subject) for one in findings.values()} == {(Severity.UNKNOWN, "permissions")}
    monkeypatch.setenv("AZURE_STORAGE_KEY", "a key opens all containers")
    assert [one.text.partition(" ")[0] for one in bad(new_cloud(interruption_queues=queue).check())] == [process]
    assert not bad(new_cloud().check())


def test_permissions__of_the_whole_role_are_checked() -> None:
    role = json.loads(ROLE.read_text())
    settings = AzureSettings(identity="any", interruption_queues=("any",))
    actions, data = (
        [*required_permissions(settings), *container_permissions()],
        [*blob_permissions(), *queue_permissions(settings)],
    )
    assert {one.name for one in actions} == set(role["Actions"])
    assert {one.name for one in data} == set(role["DataActions"])


def test_provider__that_is_not_registered_is_named_with_the_command(azure: FakeAzure, cloud: AzureCloud) -> None:
    azure.faults.registrations = {"Microsoft.Compute": "NotRegistered", "Microsoft.Storage": "Registering"}
    by_name = {one.text.partition(" ")[0]: one for one in bad(cloud.check())}
    assert by_name.keys() == azure.faults.registrations.keys()
    assert by_name["Microsoft.Compute"].severity is Severity.ERROR, "no launch succeeds without it"
    assert by_name["Microsoft.Storage"].severity is Severity.WARNING
    assert "az provider register --namespace Microsoft.Compute" in str(by_name["Microsoft.Compute"].fix)


def test_rehearsal__names_the_image_that_a_region_lacks(azure: FakeAzure, cloud: AzureCloud) -> None:
    (finding,) = cloud.rehearse()
    assert finding.severity is Severity.OK
    azure.faults.missing_images = {("eastus", "microsoft-dsvm:vmimage:ubuntu-hpc:2204")}
    accepted, *rejected = cloud.rehearse()
    assert accepted.severity is Severity.OK
    assert {one.text.partition(",")[0] for one in rejected} == {"eastus"}
    assert all("microsoft-dsvm:ubuntu-hpc:2204:latest has no version in eastus" in one.text for one in rejected)
    assert not azure.purchases()


def test_zero_quota__is_reported_for_spot_and_gpu_families(azure: FakeAzure, cloud: AzureCloud) -> None:
    h100 = family("Standard_ND96isr_H100_v5")
    for region in azure.regions:
        azure.faults.quotas |= {(region, "lowPriorityCores"): 0, (region, h100): 0, (region, "virtualMachines"): 0}
    assert {one.text for one in bad(cloud.check())} == {
        "spot vCPUs of all sizes: nothing left in any of 2 regions",
        f"on-demand vCPUs of {h100} vCPUs: nothing left in any of 2 regions",
    }


def test_restricted_size__is_reported_with_its_region(azure: FakeAzure, cloud: AzureCloud) -> None:
    azure.faults.closed = {("eastus", size) for size in TYPES}
    azure.faults.closed |= {(f"northeurope-{zone}", "Standard_F2s_v2") for zone in "123"}
    findings = cloud.check()
    (nothing,) = bad(findings)
    assert (nothing.subject, nothing.text) == ("regions", "eastus offers this subscription no sizes")
    assert any(one.text.endswith("not available to this subscription: Standard_F2s_v2") for one in findings)


def test_denied_access__is_reported_for_each_check(azure: FakeAzure, cloud: AzureCloud) -> None:
    azure.faults.deny = "AuthorizationFailed"
    who, *rest = cloud.check()
    assert who.severity is Severity.OK
    assert {(one.subject, one.severity) for one in rest} == {
        (subject, Severity.UNKNOWN) for subject in ("permissions", "providers", "regions", "quotas")
    }


def test_identity__is_empty_for_an_unknown_token_format() -> None:
    assert account("opaque") == account("a.b.c") == "an unknown account"
