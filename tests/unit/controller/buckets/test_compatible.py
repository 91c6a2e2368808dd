"""S3-compatible stores, each configured by its own section."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from perdure.controller.buckets.compatible import COMPATIBLE_STORES, compatible_store
from perdure.controller.buckets.s3 import S3Store


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_text(
        "".join(
            f"[{provider.profile}]\naws_access_key_id = {provider.profile.upper()}\naws_secret_access_key = x\n"
            for provider in COMPATIBLE_STORES.values()
        )
    )
    return str(path)


@pytest.mark.parametrize("name", COMPATIBLE_STORES)
def test_compatible_store__uses_the_keys_of_the_profile(name: str, keys: str, s3_endpoint: str) -> None:
    store = compatible_store(name, {"endpoint": s3_endpoint, "credentials_file": keys, "region": "us-east-1"})
    bucket = f"of-{name}"
    assert store.ensure(bucket)
    store.put(bucket, "a/b", io.BytesIO(b"x"))
    remote = store.rclone_remote(bucket)
    assert remote["endpoint"] == s3_endpoint
    assert remote["provider"] == COMPATIBLE_STORES[name].rclone_name
    assert remote["access_key_id"] == COMPATIBLE_STORES[name].profile.upper()
    store.remove(bucket)
    assert not store.exists(bucket)


@pytest.mark.parametrize(
    ("name", "section", "endpoint", "region"),
    [
        ("r2", {"account_id": "0123abcd"}, "https://0123abcd.r2.cloudflarestorage.com", "auto"),
        ("nebius", {}, "https://storage.eu-north1.nebius.cloud", "eu-north1"),
        ("nebius", {"region": "eu-west1"}, "https://storage.eu-west1.nebius.cloud", "eu-west1"),
        (
            "oci",
            {"namespace": "acme", "region": "us-ashburn-1"},
            "https://acme.compat.objectstorage.us-ashburn-1.oraclecloud.com",
            "us-ashburn-1",
        ),
        ("coreweave", {"region": "US-EAST-04A"}, "https://cwobject.com", "US-EAST-04A"),
        ("vastdata", {"endpoint": "https://vast.lan", "region": "any"}, "https://vast.lan", "any"),
    ],
)
def test_compatible_store__endpoint_and_region(name: str, section: dict[str, str], endpoint: str, region: str) -> None:
    store = compatible_store(name, section)
    assert (store.endpoint, store.region) == (endpoint, region)


def test_remove__works_without_versions(s3_endpoint: str, keys: str) -> None:
    store = compatible_store("r2", {"endpoint": s3_endpoint, "credentials_file": keys, "region": "us-east-1"})
    store.ensure("plain")
    store.put("plain", "a", io.BytesIO(b"x"))

    def refuse(**_: object) -> None:
        raise ClientError({"Error": {"Code": "NotImplemented"}}, "ListObjectVersions")

    store._client.meta.events.register("before-call.s3.ListObjectVersions", refuse)
    store.remove("plain")
    assert not S3Store(endpoint=s3_endpoint).exists("plain")
