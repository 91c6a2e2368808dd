"""What is particular to Google's and Azure's buckets on a node: expiring credentials, roles, checkpoint uploads."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from azure.core.credentials import AccessToken
from jwt import encode

from integration.storage.buckets import GcsBucket
from integration.storage.conditions import Until
from integration.storage.node import Node
from perdure.agent.clock import now
from perdure.agent.storage.mounts import FlushError, MountError
from perdure.agent.storage.token_server import TokenUnavailable
from perdure.checkpoint import Checkpointer
from perdure.controller.buckets.azure import AzureStore
from perdure.controller.buckets.gcs import GcsStore
from perdure.controller.buckets.stores import Access
from perdure.controller.runtime.clock import SystemClock
from support.fakes.azurite import ACCOUNT, Azurite, problem
from support.fakes.gce_metadata import GceMetadata
from support.fakes.gcs import FakeGcs

pytestmark = pytest.mark.fuse


@pytest.fixture
def other_node(node: Node, tmp_path: Path) -> Iterator[Node]:
    """A second machine without a cache of the bucket."""
    made = type(node)(tmp_path / "other", node.rclone)
    made.directory.mkdir()
    yield made
    for mounts in made.made:
        mounts.unmount_all()


@pytest.mark.parametrize("kind", ["gcs", "azure"])
def test_checkpoint__is_flushed_and_loaded_by_another_machine(
    node: Node, other_node: Node, kind: str, request: pytest.FixtureRequest
) -> None:
    bucket = request.getfixturevalue(f"{kind}_bucket")
    spec = node.spec(bucket, prefix="runs/7", options={"vfs_write_back": "1h"})
    mounts = node.mounts(spec)
    mounts.mount_all()
    weights = os.urandom(3_000_000)
    with Checkpointer(spec["path"]) as saver:
        saver.save(1, {"step": 1, "w": b"old"})
        saver.save(2, {"step": 2, "w": weights})
    mounts.flush(None)
    assert mounts.snapshot()[0]["pending"] == 0
    mounts.unmount_all()
    other = other_node.spec(bucket, prefix="runs/7")
    other_node.mounts(other).mount_all()
    with Checkpointer(other["path"]) as loader:
        assert loader.load() == {"step": 2, "w": weights}


def test_mount__outlives_its_token(node: Node, gcs_server: FakeGcs, gcs_bucket: GcsBucket, until: Until) -> None:
    gcs_server.tokens.life_s = 1.0
    try:
        spec = node.spec(gcs_bucket, options={"vfs_write_back": "1h"})
        mounts = node.mounts(spec)
        mounts.mount_all()
        first = gcs_server.tokens.made[-1]
        until(lambda: time.monotonic() > first.ends_at)
        Path(spec["path"], "model.pt").write_bytes(b"weights")
        mounts.flush(None)
    finally:
        gcs_server.tokens.life_s = 3600.0
    assert gcs_bucket.read("model.pt") == b"weights"
    assert gcs_server.tokens.made[-1].ends_at > first.ends_at


@pytest.mark.slow
def test_expired_token__upload_resumes_once_the_controller_is_back(
    node: Node, gcs_server: FakeGcs, gcs_bucket: GcsBucket, until: Until
) -> None:
    gcs_server.tokens.life_s = 1.0
    try:
        spec = node.spec(gcs_bucket, options={"vfs_write_back": "1h"})
        mounts = node.mounts(spec)
        mounts.mount_all()
        node.buckets[spec["path"]] = Away()
        with open(Path(spec["path"], "model.pt"), "wb") as file:
            until(lambda: time.monotonic() > gcs_server.tokens.made[-1].ends_at)
            file.write(b"weights")
        with pytest.raises(FlushError, match=r"model\.pt .*not by the deadline.*token"):
            mounts.flush(now() + 8)
        node.buckets[spec["path"]] = gcs_bucket
        mounts.flush(now() + 60)
    finally:
        gcs_server.tokens.life_s = 3600.0
    assert gcs_bucket.read("model.pt") == b"weights"


class Away:
    """A bucket of a controller that does not respond."""

    name = "away"

    @property
    def backend(self) -> dict[str, Any]:
        raise TokenUnavailable("nobody answers")


def test_tokens__are_in_no_argument_list_and_no_file(node: Node, gcs_bucket: GcsBucket) -> None:
    mounts = node.mounts(node.spec(gcs_bucket))
    mounts.mount_all()
    token = mounts._tokens._mounts.popitem()[1].value.encode()
    (pid,) = node.pids()
    assert token not in Path(f"/proc/{pid}/environ").read_bytes()
    assert token not in Path(f"/proc/{pid}/cmdline").read_bytes()
    for path in node.state_dir.rglob("*"):
        assert not path.is_file() or token not in path.read_bytes()


def test_google_role__gets_tokens_from_the_metadata_server(
    node: Node, gcs_server: FakeGcs, gcs_bucket: GcsBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = {"access_token": gcs_bucket.backend["access_token"], "expires_in": 3599, "token_type": "Bearer"}
    store = GcsStore(endpoint=gcs_server.url, key_file=str(gcs_server.key_file), nodes_have_role=True)
    remote = store.rclone_remote(gcs_bucket.name, Access("gcp"))
    assert remote["env_auth"] is True
    values = {"instance/service-accounts/default/token": json.dumps(token), "project/project-id": "training"}
    with GceMetadata(values) as metadata:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{metadata.server_address[1]}")
        monkeypatch.setenv("HOME", str(node.directory))
        spec = node.spec(gcs_bucket, rclone=remote)
        mounts = node.mounts(spec)
        mounts.mount_all()
        Path(spec["path"], "model.pt").write_bytes(b"weights")
        mounts.flush(None)
        mounts.unmount_all()
    assert gcs_bucket.read("model.pt") == b"weights"
    assert any("service-accounts/default/token" in path for path in metadata.asked)


@dataclass(frozen=True)
class Container:
    """A container of Azure that has credentials of its own."""

    name: str
    backend: dict[str, Any]


class EntraId:
    """A token as Entra ID issues it; azurite reads it but cannot check its signature."""

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        assert scopes == ("https://storage.azure.com/.default",)
        now = int(SystemClock().now())
        issuer = "https://sts.windows.net/8a3b5f1c-0000-4000-8000-111122223333/"
        reported = {"iss": issuer, "aud": "https://storage.azure.com", "nbf": now - 60, "iat": now, "exp": now + 3600}
        reported |= {"oid": "0b1f6471-1bf0-4dda-aec3-111122223333", "tid": "8a3b5f1c-0000-4000-8000-111122223333"}
        return AccessToken(encode(reported, "x" * 32, algorithm="HS256"), now + 3600)


def test_azure_without_a_key__signs_for_the_container_only(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why := problem():
        pytest.skip(why)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    for variable in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):  # of the controller, of rclone
        monkeypatch.setenv(variable, str(tmp_path / "ca.pem"))
    with Azurite(tmp_path / "azurite", tls=(tmp_path / "cert.pem", tmp_path / "key.pem")) as server:
        store = AzureStore(SystemClock(), account=ACCOUNT, endpoint=server.endpoint, credential=EntraId)
        assert store.ensure(f"{ACCOUNT}/ckpt")
        assert store.ensure(f"{ACCOUNT}/others")
        remote = store.rclone_remote(f"{ACCOUNT}/ckpt", Access("gcp"))
        assert "skoid=" in str(remote["sas_url"]), "signed by a user's delegation, not by a key"
        spec = node.spec(Container("ckpt", remote))
        mounts = node.mounts(spec)
        mounts.mount_all()
        Path(spec["path"], "model.pt").write_bytes(b"weights")
        mounts.flush(None)
        mounts.unmount_all()
        assert server.objects("ckpt") == {"model.pt": b"weights"}
        elsewhere = {**remote, "sas_url": str(remote["sas_url"]).replace("/ckpt?", "/others?")}
        with pytest.raises(MountError, match="403"):
            node.mounts(node.spec(Container("others", elsewhere))).mount_all()
