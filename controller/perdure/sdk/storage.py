"""A bucket mounted on a task's machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from perdure.sdk.spec import buckets
from perdure.sdk.spec.file_mount_fields import STORAGE, WITHOUT_EFFECT
from perdure.sdk.spec.problem_list import Report


class StorageMode(StrEnum):
    MOUNT = "MOUNT"  # reads and writes go to the bucket
    COPY = "COPY"  # copied to the machine before `setup`
    MOUNT_CACHED = "MOUNT_CACHED"  # writes go to the machine's disk, and from there to the bucket


class StoreType(StrEnum):
    """The kinds of object stores."""

    S3 = "S3"
    GCS = "GCS"
    AZURE = "AZURE"
    R2 = "R2"
    IBM = "IBM"
    OCI = "OCI"
    NEBIUS = "NEBIUS"
    COREWEAVE = "COREWEAVE"
    VASTDATA = "VASTDATA"
    HF = "HF"
    LOCAL = "LOCAL"
    VOLUME = "VOLUME"


@dataclass(frozen=True)
class Storage:
    """A storage object of `file_mounts`. Accepts strings for enums. Raises TaskError."""

    name: str | None = None  # of a bucket that is created if it does not exist
    #: The URI of an existing bucket, or local paths to upload to `name`, which become `{"upload", "is_file"}`.
    source: str | Sequence[str | dict[str, Any]] | dict[str, Any] | None = None
    stores: Sequence[StoreType | str] | StoreType | str | None = None
    persistent: bool = True  # the bucket outlives the job
    mode: StorageMode | str = StorageMode.MOUNT
    sync_on_reconstruction: bool = field(
        default=True, repr=False, compare=False
    )  # accepted for SkyPilot; has no effect
    mount_cached_config: dict[str, Any] | None = None
    file_mount_type: str | None = None
    mount_config: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        stores = [self.stores] if isinstance(self.stores, str) else list(self.stores or ())
        config = {"mount_cached": self.mount_cached_config, "mount": self.mount_config}
        given = {
            "name": self.name,
            "source": self.source,
            "store": str(stores[0]) if stores else None,
            "persistent": self.persistent,
            "mode": str(self.mode),
            "type": self.file_mount_type,
            "config": {key: value for key, value in config.items() if value} or None,
        }
        report = Report()
        canonical = STORAGE.parse(given, ("storage",), report)
        if len(stores) > 1:
            report.add_problem(("storage", "stores"), f"found {len(stores)} stores", "give one store")
        report.raise_if_invalid()
        self._adopt(canonical)

    @classmethod
    def from_yaml_config(cls, config: dict[str, Any]) -> Storage:
        report = Report()
        canonical = STORAGE.parse(config, ("storage",), report)
        report.raise_if_invalid()
        options = canonical.pop("config", {})
        store = canonical.pop("store", None)
        kind = canonical.pop("type", None)
        for name in WITHOUT_EFFECT:
            canonical.pop(name, None)
        return cls(
            **canonical,
            stores=store,
            file_mount_type=kind,
            mount_cached_config=options.get("mount_cached"),
            mount_config=options.get("mount"),
        )

    @property
    def store(self) -> StoreType | None:
        """The store of the bucket; None leaves the choice to the controller."""
        if self.stores:
            return StoreType(next(iter(self.stores)))
        return StoreType(self.bucket.store) if self.bucket else None

    @property
    def bucket(self) -> buckets.BucketURI | None:
        """The existing bucket that is the source, or None."""
        is_uri = isinstance(self.source, str) and buckets.is_uri(self.source)
        return buckets.parse(str(self.source)) if is_uri else None

    @property
    def local_sources(self) -> tuple[str, ...]:
        """The local paths to upload to the bucket, without those that were uploaded (`{"upload", "is_file"}`)."""
        sources = self.source if isinstance(self.source, list | tuple) else (self.source,)
        return () if self.bucket else tuple(source for source in sources if isinstance(source, str))

    def to_yaml_config(self) -> dict[str, Any]:
        """The equivalent mapping."""
        options = {"mount_cached": self.mount_cached_config, "mount": self.mount_config}
        config = {
            "name": self.name,
            "source": self.source,
            "store": str(next(iter(self.stores))) if self.stores else None,
            "persistent": None if self.persistent else False,
            "mode": str(self.mode),
            "type": self.file_mount_type,
            "config": {key: value for key, value in options.items() if value} or None,
        }
        return {key: value for key, value in config.items() if value is not None}

    def _adopt(self, canonical: dict[str, Any]) -> None:
        options = canonical.get("config", {})
        store = canonical.get("store")
        changes = {
            "name": canonical.get("name"),
            "source": canonical.get("source"),
            "stores": (StoreType(store),) if store else None,
            "mode": StorageMode(canonical["mode"]),
            "file_mount_type": canonical.get("type"),
            "mount_cached_config": options.get("mount_cached") or None,
            "mount_config": options.get("mount") or None,
        }
        for name, value in changes.items():
            object.__setattr__(self, name, value)
