"""Stores that speak S3's protocol, each set up by a section of its own."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from perdure.controller.clouds.section import SettingsError
from perdure.controller.settings import read_settings
from perdure.controller.storage.compatible import KINDS, compatible_store
from perdure.controller.storage.configured import stores_of
from perdure.controller.storage.s3 import S3Store


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_text(
        "".join(
            f"[{kind.profile}]\naws_access_key_id = {kind.profile.upper()}\naws_secret_access_key = x\n"
            for kind in KINDS.values()
        )
    )
    return str(path)


@pytest.mark.parametrize("name", KINDS)
def test_buckets_are_made_filled_and_reached_with_the_keys_of_the_profile(
    name: str, keys: str, s3_endpoint: str
) -> None:
    store = compatible_store(name, {"endpoint": s3_endpoint, "credentials_file": keys, "region": "us-east-1"})
    bucket = f"of-{name}"
    assert store.ensure(bucket)
    store.put(bucket, "a/b", io.BytesIO(b"x"))
    remote = store.rclone_remote(bucket)
    assert remote["endpoint"] == s3_endpoint
    assert remote["provider"] == KINDS[name].provider
    assert remote["access_key_id"] == KINDS[name].profile.upper()
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
def test_where_each_answers(name: str, section: dict[str, str], endpoint: str, region: str) -> None:
    store = compatible_store(name, section)
    assert (store.endpoint, store.region) == (endpoint, region)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("r2: {}", "config.yaml:1: r2.account_id: is missing"),
        ("oci: {namespace: acme}", "config.yaml:1: oci.region: is missing"),
        ("vastdata: {}", "config.yaml:1: vastdata.endpoint: is missing"),
        ("r2: {acount_id: x}", "config.yaml:1: r2.acount_id: no such setting"),
        ("s3: {endpoint: tigris}", "config.yaml:1: s3.endpoint: 'tigris' is no URL"),
        ("nebius: [1]", "config.yaml:1: nebius: a mapping is needed"),
        ("gcs: {region: us-east1}", "config.yaml:1: gcs.region: no such setting"),
        ("azure_blob: {account: 7}", "config.yaml:1: azure_blob.account: 7 is no text"),
        ("azure_blob: {endpoint: here}", "config.yaml:1: azure_blob.endpoint: 'here' is no URL"),
    ],
)
def test_a_section_that_can_not_be_used_is_told_by_line_and_field(tmp_path: Path, section: str, words: str) -> None:
    (tmp_path / "config.yaml").write_text(section + "\n")
    with pytest.raises(SettingsError, match=re.escape(words)):
        stores_of(read_settings(tmp_path), buckets_on_node=None)


def test_only_those_with_a_section_are_set_up(tmp_path: Path) -> None:
    always = {"s3", "gcs", "azure"}
    assert set(stores_of(read_settings(tmp_path), buckets_on_node=None)) == always
    (tmp_path / "config.yaml").write_text("r2: {account_id: 0123abcd}\n")
    assert set(stores_of(read_settings(tmp_path), buckets_on_node="/b")) == always | {"local", "r2"}


def test_a_server_without_versions_is_emptied_all_the_same(s3_endpoint: str, keys: str) -> None:
    store = compatible_store("r2", {"endpoint": s3_endpoint, "credentials_file": keys, "region": "us-east-1"})
    store.ensure("plain")
    store.put("plain", "a", io.BytesIO(b"x"))

    def refuse(**_: object) -> None:
        raise ClientError({"Error": {"Code": "NotImplemented"}}, "ListObjectVersions")

    store._client.meta.events.register("before-call.s3.ListObjectVersions", refuse)
    store.remove("plain")
    assert not S3Store(endpoint=s3_endpoint).exists("plain")
