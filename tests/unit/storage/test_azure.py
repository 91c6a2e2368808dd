"""Azure's containers: what nodes are given, and what errors mean. The store itself: `test_stores`."""

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

from azurite import ACCOUNT, KEY, Azurite
from perdure.controller.clock import SystemClock
from perdure.controller.settings import read_settings
from perdure.controller.storage.azure import AzureStore
from perdure.controller.storage.configured import account_of, stores_of
from perdure.controller.storage.stores import Access, StorageError
from perdure.recovery.market import FaultKind
from perdure.recovery.reasons import Reason

ROOT = Path(__file__).parents[3]
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
# Not called, but a signature for nodes can not do what the controller itself may not.
FOR_NODES = {f"{_BLOBS}/read", f"{_BLOBS}/delete"}
IDENTITY = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ManagedIdentity/userAssignedIdentities/training"
BUCKET = f"{ACCOUNT}/ckpt"


def store(blobs: Azurite, **changes: Any) -> AzureStore:
    given = {"account": ACCOUNT, "account_key": KEY, "endpoint": blobs.endpoint, **changes}
    return AzureStore(SystemClock(), **given)


def signed(remote: dict[str, object]) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(str(remote["sas_url"])).query).items()}


@pytest.mark.parametrize(("writes", "rights"), [(True, set("racwdl")), (False, set("rl"))])
def test_a_signature_is_good_for_one_container_and_for_days(blobs: Azurite, writes: bool, rights: set[str]) -> None:
    remote = store(blobs).rclone_remote(BUCKET, Access("aws", writes=writes))
    told = signed(remote)
    assert remote["type"] == "azureblob"
    assert str(remote["sas_url"]).startswith(f"{blobs.endpoint}/ckpt?")
    assert (told["sr"], set(told["sp"])) == ("c", rights)
    now = SystemClock().now()
    lasts_s = datetime.datetime.fromisoformat(told["se"]).timestamp() - now
    assert 6 * 86_400 < lasts_s < 7 * 86_400
    assert datetime.datetime.fromisoformat(told["st"]).timestamp() < now - 600, "clocks may differ"
    assert KEY not in json.dumps(remote)


def test_a_node_with_an_identity_uses_its_own(blobs: Azurite) -> None:
    found = store(blobs, node_identity=IDENTITY)
    wanted = {"type": "azureblob", "account": "other", "use_msi": True, "msi_mi_res_id": IDENTITY}
    assert (
        AzureStore(SystemClock(), node_identity=IDENTITY, account_key=KEY, account="other").rclone_remote(
            "other/ckpt", Access("azure")
        )
        == wanted
    )
    assert found.rclone_remote(BUCKET, Access("azure"))["endpoint"] == blobs.endpoint
    assert "sas_url" in found.rclone_remote(BUCKET, Access("gcp"))


def test_an_endpoint_is_that_of_its_account_alone(blobs: Azurite) -> None:
    found = store(blobs, credential=lambda: None)
    assert found._container("other/ckpt").url == "https://other.blob.core.windows.net/ckpt"


def test_a_container_that_may_not_be_used_says_what_to_allow(blobs: Azurite) -> None:
    wrong = KEY[::-1].lstrip("=").ljust(len(KEY), "=")
    with pytest.raises(StorageError, match=f"may not use container {BUCKET}: .*deploy/iam/azure-controller.json"):
        store(blobs, account_key=wrong).exists(BUCKET)


class Nobody:
    """Credentials that are not there, as the SDK's chain tells it."""

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        raise CredentialUnavailableError("DefaultAzureCredential failed to retrieve a token\nAttempted credentials: …")


def test_missing_credentials_are_named() -> None:
    found = AzureStore(SystemClock(), account=ACCOUNT, credential=Nobody)
    with pytest.raises(StorageError, match="no Azure credentials were found: set AZURE_STORAGE_KEY"):
        found.exists(BUCKET)


def test_a_dead_endpoint_is_worth_another_try() -> None:
    found = AzureStore(SystemClock(), account=ACCOUNT, account_key=KEY, endpoint="http://127.0.0.1:9/acme")
    with pytest.raises(ServiceRequestError) as caught:
        found.exists(BUCKET)
    fault = found.classify(caught.value)
    assert (fault.kind, fault.reason) == (FaultKind.RETRY_LATER, Reason.THROTTLED)
    assert fault.retry_after_s


def test_the_account_comes_of_the_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "fromenviron")
    assert account_of(stores_of(read_settings(tmp_path), buckets_on_node=None)) == "fromenviron"
    (tmp_path / "config.yaml").write_text("azure_blob: {account: fromfile}\n")
    assert account_of(stores_of(read_settings(tmp_path), buckets_on_node=None)) == "fromfile"


def test_the_role_names_what_is_called_and_no_more() -> None:
    code = (ROOT / "controller/perdure/controller/storage/azure.py").read_text()
    assert set(re.findall(r"\b(?:container|client)\.(\w+)\(", code)) == {*NEEDS, "get_container_client"}
    role = json.loads((ROOT / "deploy" / "iam" / "azure-controller.json").read_text())
    allowed = {name for name in role["Actions"] + role["DataActions"] if "/blobServices/" in name}
    assert allowed == set().union(*NEEDS.values()) | FOR_NODES
