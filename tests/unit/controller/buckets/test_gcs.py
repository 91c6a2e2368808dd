"""Google Cloud Storage: calls, permissions and tokens for nodes. The common contract is in `test_stores`."""

from __future__ import annotations

import io
import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import yaml
from google.auth import jwt
from google.auth.exceptions import RefreshError

from perdure.controller.buckets.gcs import GcsStore
from perdure.controller.buckets.stores import Access, StorageError
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.reasons import Reason
from support.fakes.gcs import FakeGcs

ROLE = Path(__file__).parents[4] / "deploy" / "iam" / "gcp-controller.yaml"
# What each call needs: cloud.google.com/storage/docs/access-control/iam-json.
NEEDS = {
    "buckets.insert": {"storage.buckets.create"},
    "buckets.get": {"storage.buckets.get"},
    "buckets.delete": {"storage.buckets.delete"},
    "objects.insert": {"storage.objects.create", "storage.objects.delete"},  # the latter to replace one
    "objects.list": {"storage.objects.list"},
    "objects.delete": {"storage.objects.delete"},
}
# Not called, but a node's token cannot allow what the controller itself may not do.
FOR_NODES = {"storage.objects.get"}


@pytest.fixture
def store(gcs: FakeGcs) -> GcsStore:
    return GcsStore(endpoint=gcs.url, key_file=str(gcs.key_file))


@pytest.fixture
def bucket(gcs: FakeGcs, store: GcsStore) -> Iterator[str]:
    store.ensure("ckpt-of-nodes")
    yield "ckpt-of-nodes"
    gcs.tokens.life_s = 3600.0
    store.remove("ckpt-of-nodes")


def list_status(gcs: FakeGcs, bucket: str, token: object, prefix: str = "") -> int:
    """The status of a listing with a node's token."""
    headers = {"Authorization": f"Bearer {token}"}
    url = f"{gcs.url}/storage/v1/b/{bucket}/o" + (f"?prefix={urllib.parse.quote(prefix)}" if prefix else "")
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as ok:
            return int(ok.status)
    except HTTPError as error:
        return error.code


def test_ensure__creates_a_bucket_with_location_and_uniform_access(gcs: FakeGcs) -> None:
    store = GcsStore(endpoint=gcs.url, key_file=str(gcs.key_file), location="europe-west4")
    store.ensure("in-the-netherlands")
    created = gcs.state.bucket("in-the-netherlands")
    assert created.resource["location"] == "EUROPE-WEST4"
    assert created.is_uniform
    store.remove("in-the-netherlands")


def test_rclone_remote__token_is_valid_for_one_bucket(gcs: FakeGcs, store: GcsStore, bucket: str) -> None:
    store.ensure("somebody-elses-work")
    remote = store.rclone_remote(bucket, Access("aws"))
    assert {name: value for name, value in remote.items() if name not in ("access_token", "expires_at")} == {
        "type": "gcs",
        "bucket_policy_only": True,
        "endpoint": f"{gcs.url}/storage/v1/",
    }
    assert list_status(gcs, bucket, remote["access_token"]) == 200
    assert list_status(gcs, "somebody-elses-work", remote["access_token"]) == 403
    assert "objects.insert" in gcs.tokens.made[-1].methods
    store.remove("somebody-elses-work")


def test_rclone_remote__read_only_token(gcs: FakeGcs, store: GcsStore, bucket: str) -> None:
    store.rclone_remote(bucket, Access(writes=False))
    assert gcs.tokens.made[-1].methods == {"objects.get", "objects.list"}


def test_rclone_remote__token_is_valid_below_its_prefix(gcs: FakeGcs, store: GcsStore, bucket: str) -> None:
    token = store.rclone_remote(bucket, Access(prefix="runs/a"))["access_token"]
    assert gcs.tokens.made[-1].prefix == "runs/a/"
    assert list_status(gcs, bucket, token) == 403, "the whole bucket"
    assert list_status(gcs, bucket, token, prefix="runs/a/") == 200
    assert list_status(gcs, bucket, token, prefix="runs/ab/") == 403


@pytest.mark.parametrize(("life_s", "is_same"), [(3600.0, True), (2900.0, False)])
def test_rclone_remote__reuses_a_token_while_it_is_valid_long_enough(
    gcs: FakeGcs, store: GcsStore, bucket: str, life_s: float, is_same: bool
) -> None:
    gcs.tokens.life_s = life_s
    first, second = (store.rclone_remote(bucket, Access())["access_token"] for _ in range(2))
    assert (first == second) is is_same


def test_rclone_remote__node_with_a_service_account_uses_it(gcs: FakeGcs, bucket: str) -> None:
    store = GcsStore(endpoint=gcs.url, key_file=str(gcs.key_file), nodes_have_role=True)
    assert store.rclone_remote(bucket, Access("gcp"))["env_auth"] is True
    assert "access_token" not in store.rclone_remote(bucket, Access("gcp"))
    assert "access_token" in store.rclone_remote(bucket, Access("azure"))


def test_rclone_remote__token_for_a_bucket_without_uniform_access(gcs: FakeGcs, store: GcsStore) -> None:
    gcs.make("old-and-fine-grained", uniform=False)
    token = store.rclone_remote("old-and-fine-grained", Access())["access_token"]
    claims: Any = jwt.decode(str(token), verify=False)
    assert claims["scope"] == "https://www.googleapis.com/auth/devstorage.read_write"
    store.remove("old-and-fine-grained")


def test_ensure__rejects_a_bucket_of_another_project(gcs: FakeGcs, store: GcsStore) -> None:
    gcs.state.others.add("somebody-elses")
    for call in (store.exists, store.ensure):
        with pytest.raises(StorageError, match=r"may not use it.*choose another name"):
            call("somebody-elses")


def test_remove__deletes_page_by_page(gcs: FakeGcs, store: GcsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.ensure("of-many-pages")
    for number in range(7):
        gcs.put("of-many-pages", f"a folder/ü{number}?#%2F", b"x")
    monkeypatch.setattr(gcs.state, "page", 3)
    store.remove("of-many-pages")
    assert not store.exists("of-many-pages")


def test_classify__unreachable_endpoint_is_retried(gcs: FakeGcs) -> None:
    store = GcsStore(endpoint="http://127.0.0.1:9", key_file=str(gcs.key_file))
    with pytest.raises(Exception, match="Connection refused") as caught:
        store.exists("any-bucket")
    fault = store.classify(caught.value)
    assert (fault.kind, fault.reason) == (FaultKind.RETRY_LATER, Reason.THROTTLED)
    assert fault.retry_after_s


@pytest.mark.parametrize(("retryable", "kind"), [(True, FaultKind.RETRY_LATER), (False, FaultKind.GIVE_UP)])
def test_classify__token_server_decides_about_retries(store: GcsStore, retryable: bool, kind: FaultKind) -> None:
    assert store.classify(RefreshError("no token", retryable=retryable)).kind is kind


def test_classify__missing_credentials(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    store = GcsStore(endpoint=gcs.url)
    with pytest.raises(Exception, match="credentials") as caught:
        store.ensure("any-bucket")
    fault = store.classify(caught.value)
    assert (fault.kind, fault.reason) == (FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS)


def test_classify__rejected_credentials_are_not_retried(gcs: FakeGcs, tmp_path: Path) -> None:
    account = {**json.loads(gcs.key_file.read_text()), "client_email": "nobody@elsewhere.iam.gserviceaccount.com"}
    (tmp_path / "key.json").write_text(json.dumps(account))
    store = GcsStore(endpoint=gcs.url, key_file=str(tmp_path / "key.json"))
    with pytest.raises(Exception, match="Invalid Credentials") as caught:
        store.ensure("any-bucket")
    fault = store.classify(caught.value)
    assert (fault.kind, fault.reason) == (FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS)


def test_role__allows_exactly_the_calls(gcs: FakeGcs, store: GcsStore) -> None:
    gcs.calls.clear()
    store.ensure("a-whole-life")
    store.put("a-whole-life", "a/b", io.BytesIO(b"x"))
    store.rclone_remote("a-whole-life", Access())
    store.remove("a-whole-life")
    assert set(gcs.calls) == set(NEEDS)
    allowed = {name for name in yaml.safe_load(ROLE.read_text())["includedPermissions"] if name.startswith("storage.")}
    assert allowed == set().union(*NEEDS.values()) | FOR_NODES
