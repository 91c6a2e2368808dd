"""Plans of `file_mounts`, and the creation, upload and mounts of their buckets."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.buckets.mounts import (
    BucketRequest,
    StoragePlan,
    ensure_bucket,
    node_mounts,
    plan,
    upload_contents,
)
from perdure.controller.buckets.stores import LocalStore, StorageError, Store
from perdure.recovery.market.unavailable import FaultKind

DIGEST = "ab" * 32


def planned(file_mounts: dict[str, Any], *, default_store: str = "local") -> StoragePlan:
    return plan(file_mounts, stores={"local", "s3"}, default_store=default_store)


def test_plan__uri_alone_is_copied() -> None:
    result = planned({"/data": "s3://corpus/books/v2/"})
    assert result.buckets == (BucketRequest("s3", "corpus", create=False),)
    assert result.mounts == (
        {
            "path": "/data",
            "mode": "COPY",
            "store": "s3",
            "bucket": "corpus",
            "prefix": "books/v2",
            "read_only": False,
            "options": {},
        },
    )


@pytest.mark.parametrize(
    ("mount", "default_store", "store"),
    [
        ({"name": "ckpt"}, "local", "local"),
        ({"name": "ckpt"}, "s3", "s3"),
        ({"name": "ckpt", "store": "S3"}, "local", "s3"),
        ({"name": "ckpt", "store": "LOCAL"}, "s3", "local"),
        ({"source": "s3://ckpt"}, "local", "s3"),
        ({"source": "local://ckpt"}, "s3", "local"),
    ],
)
def test_plan__chooses_the_store(mount: dict[str, Any], default_store: str, store: str) -> None:
    result = planned({"/ckpt": {"mode": "MOUNT_CACHED", **mount}}, default_store=default_store)
    assert result.buckets[0].store == result.mounts[0]["store"] == store
    assert result.buckets[0].create is ("name" in mount)


def test_plan__temporary_bucket() -> None:
    result = planned({"/ckpt": {"name": "ckpt", "mode": "MOUNT", "persistent": False}})
    assert result.buckets == (BucketRequest("local", "ckpt", create=True, persistent=False),)


def test_plan__uploaded_file() -> None:
    result = planned({"~/.vimrc": {"upload": DIGEST, "is_file": True}})
    assert result.uploads == ({"path": "~/.vimrc", "upload": DIGEST, "is_file": True},)
    assert result.buckets == result.mounts == ()


@pytest.mark.parametrize("as_list", [False, True])
def test_plan__uploaded_source_goes_into_the_bucket(as_list: bool) -> None:
    source: Any = {"upload": DIGEST, "is_file": False}
    result = planned({"/data": {"name": "corpus", "source": [source] if as_list else source}})
    assert result.buckets == (BucketRequest("local", "corpus", create=True, uploads=(DIGEST,)),)
    assert result.mounts[0]["mode"] == "MOUNT"


def test_plan__rejects_a_source_that_was_not_uploaded() -> None:
    with pytest.raises(StorageError, match="was not uploaded") as caught:
        planned({"/data": {"name": "corpus", "source": ["./here"]}})
    assert caught.value.where == "file_mounts[/data].source"


def test_plan__merges_mounts_of_one_bucket() -> None:
    result = planned(
        {
            "/a": {"name": "ckpt", "persistent": False, "source": {"upload": DIGEST}},
            "/b": {"source": "local://ckpt/deep"},
            "/c": {"name": "ckpt", "persistent": False, "source": {"upload": DIGEST}},
        }
    )
    assert result.buckets == (BucketRequest("local", "ckpt", create=True, persistent=False, uploads=(DIGEST,)),)
    assert [mount["prefix"] for mount in result.mounts] == ["", "deep", ""]


def test_plan__one_persistent_mount_keeps_the_bucket() -> None:
    result = planned({"/a": {"name": "ckpt", "persistent": False}, "/b": {"name": "ckpt"}})
    assert result.buckets[0].persistent


@pytest.mark.parametrize(
    ("mount", "options", "read_only"),
    [
        ({"type": "MODEL_CHECKPOINT_RO"}, {"vfs_read_chunk_streams": 16, "vfs_read_chunk_size": "32M"}, True),
        (
            {"type": "MODEL_CHECKPOINT_RW", "config": {"mount_cached": {"transfers": 2}}},
            {"vfs_read_chunk_streams": 16, "vfs_read_chunk_size": "32M", "transfers": 2},
            False,
        ),
        ({"type": "DATASET_RO", "config": {"mount_cached": {"read_only": False}}}, None, False),
        ({"config": {"mount_cached": {"vfs_write_back": "5s", "read_only": True}}}, {"vfs_write_back": "5s"}, True),
        ({"mode": "MOUNT", "config": {"mount": {"read_only": True}}}, {}, True),
        ({"mode": "MOUNT", "config": {"mount_cached": {"transfers": 3}}}, {}, False),
    ],
)
def test_plan__mount_options(mount: dict[str, Any], options: dict[str, Any] | None, read_only: bool) -> None:
    mount_of_plan = planned({"/data": {"name": "data", "mode": "MOUNT_CACHED", **mount}}).mounts[0]
    assert mount_of_plan["read_only"] is read_only
    assert options is None or mount_of_plan["options"] == options


@pytest.mark.parametrize(
    "uri",
    [
        "cos://us-east/bucket",
        "hf://datasets/x",
    ],
)
def test_plan__names_unsupported_store(uri: str) -> None:
    with pytest.raises(StorageError, match="is not supported yet") as caught:
        planned({"/data": uri})
    assert uri in caught.value.message
    assert caught.value.where == "file_mounts[/data].source"
    assert "local, s3" in caught.value.fix


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("gs://bucket", r"gs://bucket \(GCS\) is not set up here: .*pip install '\.\[gcp\]'"),
        ("https://acme.blob.core.windows.net/ckpt", r"\(AZURE\) is not set up here: .*pip install '\.\[azure\]'"),
    ],
)
def test_plan__missing_sdk_names_the_extra_to_install(uri: str, words: str) -> None:
    with pytest.raises(StorageError, match=words):
        planned({"/data": uri})


def test_plan__azure_container_belongs_to_an_account() -> None:
    mounts = {
        "/a": {"source": "https://other.blob.core.windows.net/ckpt/deep/er", "mode": "MOUNT"},
        "/b": {"name": "ckpt", "store": "AZURE"},
        "/c": {"source": "https://acme.blob.core.windows.net/ckpt", "mode": "MOUNT"},
    }
    result = plan(mounts, stores={"azure"}, default_store="azure", account="acme")
    assert [(mount["bucket"], mount["prefix"]) for mount in result.mounts] == [
        ("other/ckpt", "deep/er"),
        ("acme/ckpt", ""),
        ("acme/ckpt", ""),
    ]
    assert [(bucket.bucket, bucket.create) for bucket in result.buckets] == [("other/ckpt", False), ("acme/ckpt", True)]


def test_plan__azure_container_without_an_account() -> None:
    with pytest.raises(StorageError, match=r"file_mounts\[/b\].name: .*azure_blob.account .*AZURE_STORAGE_ACCOUNT"):
        plan({"/b": {"name": "ckpt"}}, stores={"azure"}, default_store="azure")


@pytest.mark.parametrize(
    ("store", "name", "words"),
    [
        ("azure", "under_score", "container name"),
        ("azure", "two--dashes", "container name"),
        ("azure", "dotted.name", "container name"),
        ("gcs", "goog-mine", "underscores"),
        ("gcs", "a..b", "underscores"),
    ],
)
def test_plan__rejects_invalid_names(store: str, name: str, words: str) -> None:
    with pytest.raises(StorageError, match=words):
        plan({"/x": {"name": name, "store": store}}, stores={store}, default_store=store, account="acme")


def test_plan__gcs_names_may_be_longer_and_contain_underscores() -> None:
    name = "a_" + "long." * 20 + "z"
    assert plan({"/x": f"gs://{name}/y"}, stores={"gcs"}, default_store="gcs").buckets[0].bucket == name


@pytest.mark.parametrize(
    ("uri", "store"), [("r2://ckpt/x", "r2"), ("nebius://ckpt/x", "nebius"), ("cw://ckpt/x", "coreweave")]
)
def test_plan__scheme_determines_the_store(uri: str, store: str) -> None:
    result = plan({"/data": uri}, stores={"local", store}, default_store="local")
    assert [(bucket.store, bucket.bucket) for bucket in result.buckets] == [(store, "ckpt")]
    with pytest.raises(StorageError, match=f"a section `{store}:`"):
        plan({"/data": uri}, stores={"local", "s3"}, default_store="local")


def test_plan__rejects_store_that_is_not_set_up() -> None:
    with pytest.raises(StorageError, match="S3 is not set up here"):
        plan({"/data": {"name": "data", "store": "S3"}}, stores={"local"}, default_store="local")


@pytest.mark.parametrize("name", ["Upper", "ab", "a" * 64, "under_score", "a..b", "192.168.0.1", "xn--x", "x-s3alias"])
def test_plan__rejects_names_that_s3_rejects(name: str) -> None:
    with pytest.raises(StorageError, match="is not a valid bucket name"):
        planned({"/data": {"name": name}})


def test_plan__round_trips_through_json() -> None:
    result = planned({"/data": {"name": "corpus", "source": {"upload": DIGEST}}})
    restored = [BucketRequest.from_json(json.loads(json.dumps(bucket.to_json()))) for bucket in result.buckets]
    assert tuple(restored) == result.buckets
    assert json.loads(json.dumps(result.mounts)) == list(result.mounts)


def test_ensure_bucket__missing_bucket_is_an_error_and_is_not_created(store: Store, bucket: str) -> None:
    request = BucketRequest(store.name, bucket, create=False)
    with pytest.raises(StorageError, match="create it") as caught:
        ensure_bucket(request, {store.name: store})
    assert store.classify(caught.value).kind is FaultKind.GIVE_UP
    assert not store.exists(bucket)


def _archive(path: Path, files: dict[str, bytes], links: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, body in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
        for name, target in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return path


def test_upload_contents__unpacks_an_archive(
    store: Store, bucket: str, tmp_path: Path, read: Callable[[str, str], bytes]
) -> None:
    archive = _archive(tmp_path / "x.tar.gz", {"a.txt": b"a", "sub/b.bin": b"b" * 100_000}, {"sub/link": "b.bin"})
    request = BucketRequest(store.name, bucket, create=True, uploads=("digest",))
    assert ensure_bucket(request, {store.name: store})
    for _ in range(2):
        upload_contents(request, {store.name: store}, archive=lambda digest: archive)
    assert read(bucket, "a.txt") == b"a"
    assert read(bucket, "sub/b.bin") == read(bucket, "sub/link") == b"b" * 100_000


@pytest.mark.parametrize(
    ("files", "links", "words"),
    [
        ({"../evil": b"x"}, {}, "is not a valid object name"),
        ({}, {"link": "/etc/passwd"}, "links to a directory, or to a file that is not uploaded"),
    ],
)
def test_upload_contents__rejects_paths_and_links_outside_the_archive(
    store: Store, bucket: str, tmp_path: Path, files: dict[str, bytes], links: dict[str, str], words: str
) -> None:
    archive = _archive(tmp_path / "x.tar.gz", files, links)
    store.ensure(bucket)
    with pytest.raises(StorageError, match=words):
        upload_contents(
            BucketRequest(store.name, bucket, True, uploads=("d",)), {store.name: store}, archive=lambda _: archive
        )


def test_upload_contents__rejects_a_file_that_is_not_an_archive(store: Store, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"not an archive")
    store.ensure(bucket)
    with pytest.raises(StorageError, match="is not an archive"):
        upload_contents(
            BucketRequest(store.name, bucket, True, uploads=("d",)),
            {store.name: store},
            archive=lambda _: tmp_path / "x",
        )


def test_node_mounts__local_bucket(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, root_on_node="/run/perdure/buckets")
    mounts = plan({"/ckpt": {"name": "ckpt"}}, stores={"local"}, default_store="local").mounts
    assert node_mounts(mounts, {"local": store}) == [
        {
            "path": "/ckpt",
            "mode": "MOUNT",
            "bucket": "ckpt",
            "prefix": "",
            "read_only": False,
            "options": {},
            "rclone": {"type": "local", "root": "/run/perdure/buckets"},
        }
    ]
