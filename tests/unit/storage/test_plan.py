"""From `file_mounts` to wishes, mounts and uploads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.controller.storage.mounts import BucketWish, StoragePlan, plan
from perdure.controller.storage.stores import StorageError

DIGEST = "ab" * 32


def planned(file_mounts: dict[str, Any], *, default_store: str = "local") -> StoragePlan:
    return plan(file_mounts, stores={"local", "s3"}, default_store=default_store)


def test_uri_as_text_is_copied() -> None:
    found = planned({"/data": "s3://corpus/books/v2/"})
    assert found.wishes == (BucketWish("s3", "corpus", create=False),)
    assert found.mounts == (
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
def test_which_store(mount: dict[str, Any], default_store: str, store: str) -> None:
    found = planned({"/ckpt": {"mode": "MOUNT_CACHED", **mount}}, default_store=default_store)
    assert found.wishes[0].store == found.mounts[0]["store"] == store
    assert found.wishes[0].create is ("name" in mount)


def test_named_bucket_that_ends_with_the_job() -> None:
    found = planned({"/ckpt": {"name": "ckpt", "mode": "MOUNT", "persistent": False}})
    assert found.wishes == (BucketWish("local", "ckpt", create=True, persistent=False),)


def test_uploaded_files_go_to_uploads() -> None:
    found = planned({"~/.vimrc": {"upload": DIGEST, "is_file": True}})
    assert found.uploads == ({"path": "~/.vimrc", "upload": DIGEST, "is_file": True},)
    assert found.wishes == found.mounts == ()


@pytest.mark.parametrize("as_list", [False, True])
def test_uploaded_source_fills_the_bucket(as_list: bool) -> None:
    source: Any = {"upload": DIGEST, "is_file": False}
    found = planned({"/data": {"name": "corpus", "source": [source] if as_list else source}})
    assert found.wishes == (BucketWish("local", "corpus", create=True, uploads=(DIGEST,)),)
    assert found.mounts[0]["mode"] == "MOUNT"


def test_source_that_was_not_uploaded_is_refused() -> None:
    with pytest.raises(StorageError, match="was not uploaded") as caught:
        planned({"/data": {"name": "corpus", "source": ["./here"]}})
    assert caught.value.where == "file_mounts[/data].source"


def test_mounts_of_one_bucket_are_one_wish() -> None:
    found = planned(
        {
            "/a": {"name": "ckpt", "persistent": False, "source": {"upload": DIGEST}},
            "/b": {"source": "local://ckpt/deep"},
            "/c": {"name": "ckpt", "persistent": False, "source": {"upload": DIGEST}},
        }
    )
    assert found.wishes == (BucketWish("local", "ckpt", create=True, persistent=False, uploads=(DIGEST,)),)
    assert [mount["prefix"] for mount in found.mounts] == ["", "deep", ""]


def test_one_mount_that_persists_keeps_the_bucket() -> None:
    found = planned({"/a": {"name": "ckpt", "persistent": False}, "/b": {"name": "ckpt"}})
    assert found.wishes[0].persistent


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
def test_options(mount: dict[str, Any], options: dict[str, Any] | None, read_only: bool) -> None:
    found = planned({"/data": {"name": "data", "mode": "MOUNT_CACHED", **mount}}).mounts[0]
    assert found["read_only"] is read_only
    assert options is None or found["options"] == options


@pytest.mark.parametrize(
    "uri",
    [
        "cos://us-east/bucket",
        "hf://datasets/x",
    ],
)
def test_stores_that_are_not_supported_are_named(uri: str) -> None:
    with pytest.raises(StorageError, match="is not supported yet") as caught:
        planned({"/data": uri})
    assert uri in caught.value.message
    assert caught.value.where == "file_mounts[/data].source"
    assert "local, s3" in caught.value.fix


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("gs://bucket", r"gs://bucket \(GCS\) is not set up here: .*install perdure\[gcp\]"),
        ("https://acme.blob.core.windows.net/ckpt", r"\(AZURE\) is not set up here: .*install perdure\[azure\]"),
    ],
)
def test_stores_whose_library_is_missing_say_what_to_install(uri: str, words: str) -> None:
    with pytest.raises(StorageError, match=words):
        planned({"/data": uri})


def test_a_container_is_one_of_an_account() -> None:
    mounts = {
        "/a": {"source": "https://other.blob.core.windows.net/ckpt/deep/er", "mode": "MOUNT"},
        "/b": {"name": "ckpt", "store": "AZURE"},
        "/c": {"source": "https://acme.blob.core.windows.net/ckpt", "mode": "MOUNT"},
    }
    found = plan(mounts, stores={"azure"}, default_store="azure", account="acme")
    assert [(mount["bucket"], mount["prefix"]) for mount in found.mounts] == [
        ("other/ckpt", "deep/er"),
        ("acme/ckpt", ""),
        ("acme/ckpt", ""),
    ]
    assert [(wish.bucket, wish.create) for wish in found.wishes] == [("other/ckpt", False), ("acme/ckpt", True)]


def test_a_container_without_an_account_says_where_to_name_one() -> None:
    with pytest.raises(StorageError, match=r"file_mounts\[/b\].name: .*azure_blob.account .*AZURE_STORAGE_ACCOUNT"):
        plan({"/b": {"name": "ckpt"}}, stores={"azure"}, default_store="azure")


@pytest.mark.parametrize(
    ("store", "name", "words"),
    [
        ("azure", "under_score", "container's name"),
        ("azure", "two--dashes", "container's name"),
        ("azure", "dotted.name", "container's name"),
        ("gcs", "goog-mine", "underscores"),
        ("gcs", "a..b", "underscores"),
    ],
)
def test_names_that_their_store_refuses(store: str, name: str, words: str) -> None:
    with pytest.raises(StorageError, match=words):
        plan({"/x": {"name": name, "store": store}}, stores={store}, default_store=store, account="acme")


def test_googles_names_may_be_longer_and_hold_underscores() -> None:
    name = "a_" + "long." * 20 + "z"
    assert plan({"/x": f"gs://{name}/y"}, stores={"gcs"}, default_store="gcs").wishes[0].bucket == name


@pytest.mark.parametrize(
    ("uri", "store"), [("r2://ckpt/x", "r2"), ("nebius://ckpt/x", "nebius"), ("cw://ckpt/x", "coreweave")]
)
def test_the_scheme_says_which_store(uri: str, store: str) -> None:
    found = plan({"/data": uri}, stores={"local", store}, default_store="local")
    assert [(wish.store, wish.bucket) for wish in found.wishes] == [(store, "ckpt")]
    with pytest.raises(StorageError, match=f"a section `{store}:`"):
        plan({"/data": uri}, stores={"local", "s3"}, default_store="local")


def test_store_that_is_not_set_up() -> None:
    with pytest.raises(StorageError, match="S3 is not set up here"):
        plan({"/data": {"name": "data", "store": "S3"}}, stores={"local"}, default_store="local")


@pytest.mark.parametrize("name", ["Upper", "ab", "a" * 64, "under_score", "a..b", "192.168.0.1", "xn--x", "x-s3alias"])
def test_names_that_s3_refuses(name: str) -> None:
    with pytest.raises(StorageError, match="can not be a bucket's name"):
        planned({"/data": {"name": name}})


def test_a_plan_survives_json() -> None:
    found = planned({"/data": {"name": "corpus", "source": {"upload": DIGEST}}})
    again = [BucketWish.from_json(json.loads(json.dumps(wish.to_json()))) for wish in found.wishes]
    assert tuple(again) == found.wishes
    assert json.loads(json.dumps(found.mounts)) == list(found.mounts)
