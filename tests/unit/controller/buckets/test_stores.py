"""The contract of every store: the local one, and those of clouds against servers on this computer."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.controller.buckets.stores import ANYWHERE, LocalStore, StorageError, Store
from perdure.recovery.market.unavailable import FaultKind


def test_store__creates_a_bucket_once(store: Store, bucket: str) -> None:
    assert not store.exists(bucket)
    assert store.ensure(bucket)
    assert store.exists(bucket)
    assert not store.ensure(bucket)


def test_store__writes_and_replaces_objects(store: Store, bucket: str, read: Callable[[str, str], bytes]) -> None:
    store.ensure(bucket)
    store.put(bucket, "deep/er/a.txt", io.BytesIO(b"one"))
    store.put(bucket, "deep/er/a.txt", io.BytesIO(b"two"))
    assert read(bucket, "deep/er/a.txt") == b"two"


def test_store__removes_a_bucket_with_its_contents(store: Store, bucket: str) -> None:
    store.ensure(bucket)
    store.put(bucket, "a/b", io.BytesIO(b"x"))
    store.remove(bucket)
    assert not store.exists(bucket)
    store.remove(bucket)


def test_store__rejects_an_object_for_a_missing_bucket(store: Store, bucket: str) -> None:
    with pytest.raises(
        Exception, match=r"no bucket|NoSuchBucket|bucket does not exist|container does not exist"
    ) as caught:
        store.put(bucket, "a", io.BytesIO(b"x"))
    assert store.classify(caught.value).kind is FaultKind.GIVE_UP
    assert not store.exists(bucket)


@pytest.mark.parametrize("key", ["../escape", "/absolute", "a/../../b", ""])
def test_store__rejects_keys_outside_the_bucket(store: Store, bucket: str, key: str) -> None:
    store.ensure(bucket)
    with pytest.raises(StorageError, match="is not a valid object name"):
        store.put(bucket, key, io.BytesIO(b"x"))


@pytest.mark.parametrize("name", ["../x", "UPPER", "a"])
def test_store__checks_names_first(store: Store, name: str) -> None:
    for method in (store.ensure, store.exists, store.remove, lambda name: store.rclone_remote(name, ANYWHERE)):
        with pytest.raises(StorageError, match=r"is not a valid (bucket|container) name"):
            method(name)


def test_local_store__objects_are_world_readable(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "buckets")
    store.ensure("ckpt")
    store.put("ckpt", "a", io.BytesIO(b"a"))
    assert (tmp_path / "buckets/ckpt/a").stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path / "buckets") == ["ckpt"]


def test_local_store__failed_write_leaves_no_object(tmp_path: Path) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(28, "No space left on device")

    store = LocalStore(tmp_path / "buckets")
    store.ensure("ckpt")
    with pytest.raises(OSError, match="No space") as caught:
        store.put("ckpt", "a", Broken())
    assert list((tmp_path / "buckets").rglob("*")) == [tmp_path / "buckets/ckpt"]
    assert store.classify(caught.value).kind is FaultKind.RETRY_LATER
    assert store.classify(PermissionError(13, "denied")).kind is FaultKind.GIVE_UP


def test_local_store__does_not_follow_a_link_out_of_the_bucket(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "buckets")
    store.ensure("a-bucket")
    (tmp_path / "outside").mkdir()
    (tmp_path / "buckets/a-bucket/link").symlink_to(tmp_path / "outside")
    with pytest.raises(StorageError, match="behind a link that leaves bucket"):
        store.put("a-bucket", "link/x/y", io.BytesIO(b"1"))
    assert list((tmp_path / "outside").iterdir()) == []
