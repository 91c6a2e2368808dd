"""Azure containers: credentials for nodes, and errors. The common contract is in `test_stores`."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ServiceRequestError
from azure.identity import CredentialUnavailableError

from perdure.controller.buckets.azure import AzureStore
from perdure.controller.buckets.stores import Access, StorageError
from perdure.controller.runtime.clock import SystemClock
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.reasons import Reason
from support.fakes.azurite import ACCOUNT, KEY, Azurite

ROOT = Path(__file__).parents[4]
_ACCOUNT = "Microsoft.Storage/storageAccounts/blobServices"
_BLOBS = f"{_ACCOUNT}/containers/blobs"
# What each call needs: learn.microsoft.com/rest/api/storageservices/authorize-with-azure-active-directory.
NEEDS = {
    "create_container": {f"{_ACCOUNT}/containers/write"},
    "get_container_properties": {f"{_ACCOUNT}/containers/read"},
    "delete_container": {f"{_ACCOUNT}/containers/delete"},
    "get_user_delegation_key": {f"{_ACCOUNT}/generateUserDelegationKey/action"},
    "upload_blob": {f"{_BLOBS}/write", f"{_BLOBS}/add/action"},
}
# Not called, but a signature for nodes cannot allow what the controller itself may not do.
FOR_NODES = {f"{_BLOBS}/read", f"{_BLOBS}/delete"}
IDENTITY = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ManagedIdentity/userAssignedIdentities/training"
BUCKET = f"{ACCOUNT}/ckpt"


def store(blobs: Azurite, **changes: Any) -> AzureStore:
    options = {"account": ACCOUNT, "account_key": KEY, "endpoint": blobs.endpoint, **changes}
    return AzureStore(SystemClock(), **options)


def signed(remote: dict[str, object]) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(str(remote["sas_url"])).query).items()}


@pytest.mark.parametrize(("writes", "rights"), [(True, set("racwdl")), (False, set("rl"))])
def test_rclone_remote__signature_is_valid_for_one_container_and_for_days(
    blobs: Azurite, writes: bool, rights: set[str]
) -> None:
    remote = store(blobs).rclone_remote(BUCKET, Access("aws", writes=writes))
    parameters = signed(remote)
    assert remote["type"] == "azureblob"
    assert str(remote["sas_url"]).startswith(f"{blobs.endpoint}/ckpt?")
    assert (parameters["sr"], set(parameters["sp"])) == ("c", rights)
    now = SystemClock().now()
    lifetime_s = datetime.datetime.fromisoformat(parameters["se"]).timestamp() - now
    assert 6 * 86_400 < lifetime_s < 7 * 86_400
    assert datetime.datetime.fromisoformat(parameters["st"]).timestamp() < now - 600, "clocks may differ"
    assert KEY not in json.dumps(remote)


def test_rclone_remote__node_with_an_identity_uses_it(blobs: Azurite) -> None:
    azure = store(blobs, node_identity=IDENTITY)
    expected = {"type": "azureblob", "account": "other", "use_msi": True, "msi_mi_res_id": IDENTITY}
    assert (
        AzureStore(SystemClock(), node_identity=IDENTITY, account_key=KEY, account="other").rclone_remote(
            "other/ckpt", Access("azure")
        )
        == expected
    )
    assert azure.rclone_remote(BUCKET, Access("azure"))["endpoint"] == blobs.endpoint
    assert "sas_url" in azure.rclone_remote(BUCKET, Access("gcp"))


def test_azure_store__endpoint_applies_to_its_account_only(blobs: Azurite) -> None:
    azure = store(blobs, credential=lambda: None)
    assert azure._container("other/ckpt").url == "https://other.blob.core.windows.net/ckpt"


def test_exists__names_the_missing_permissions(blobs: Azurite) -> None:
    wrong = KEY[::-1].lstrip("=").ljust(len(KEY), "=")
    with pytest.raises(StorageError, match=f"may not use container {BUCKET}: .*deploy/iam/azure-controller.json"):
        store(blobs, account_key=wrong).exists(BUCKET)


class NoCredentials:
    """Fails as the SDK's chain does without credentials."""

    def get_token(self, *scopes: str, **_: object) -> AccessToken:
        raise CredentialUnavailableError("DefaultAzureCredential failed to retrieve a token\nAttempted credentials: …")


def test_exists__missing_credentials() -> None:
    azure = AzureStore(SystemClock(), account=ACCOUNT, credential=NoCredentials)
    with pytest.raises(StorageError, match="no Azure credentials were found: set AZURE_STORAGE_KEY"):
        azure.exists(BUCKET)


def test_classify__unreachable_endpoint_is_retried() -> None:
    azure = AzureStore(SystemClock(), account=ACCOUNT, account_key=KEY, endpoint="http://127.0.0.1:9/acme")
    with pytest.raises(ServiceRequestError) as caught:
        azure.exists(BUCKET)
    fault = azure.classify(caught.value)
    assert (fault.kind, fault.reason) == (FaultKind.RETRY_LATER, Reason.THROTTLED)
    assert fault.retry_after_s


def test_role__allows_exactly_the_calls() -> None:
    code = (ROOT / "controller/perdure/controller/buckets/azure.py").read_text()
    assert set(re.findall(r"\b(?:container|client)\.(\w+)\(", code)) == {*NEEDS, "get_container_client"}
    role = json.loads((ROOT / "deploy" / "iam" / "azure-controller.json").read_text())
    allowed = {name for name in role["Actions"] + role["DataActions"] if "/blobServices/" in name}
    assert allowed == set().union(*NEEDS.values()) | FOR_NODES
