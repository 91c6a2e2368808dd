"""Storage objects as Python objects."""

from __future__ import annotations

from perdure.sdk import Storage, StorageMode, StoreType


def test_storage__accepts_strings_for_enums() -> None:
    storage = Storage(
        name="abc",
        source="./data",
        stores=StoreType.GCS,
        persistent=False,
        mode="mount_cached",
        file_mount_type="dataset_ro",
        mount_cached_config={"transfers": 4},
        mount_config={"read_only": True},
    )
    assert storage.mode is StorageMode.MOUNT_CACHED
    assert storage.store is StoreType.GCS
    assert storage.local_sources == ("./data",)
    assert storage.bucket is None
    assert Storage.from_yaml_config(storage.to_yaml_config()) == storage
    assert Storage(source="s3://x/y").store is StoreType.S3
    assert Storage(source="s3://x/y").local_sources == ()
