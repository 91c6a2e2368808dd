"""Plans the buckets and mounts of a task's `file_mounts`.

`plan` is pure: it calls no store. `ensure_bucket` and `upload_contents` create and fill the buckets. `node_mounts` adds
what a node needs to access them, including secrets, when the node requests its spec.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from perdure.controller.buckets.archive import MAX_UNPACKED_BYTES, read_files
from perdure.controller.buckets.compatible import COMPATIBLE_STORES
from perdure.controller.buckets.stores import Access, StorageError, Store, check_bucket_name
from perdure.sdk.connection.installation import install_command
from perdure.sdk.spec import buckets
from perdure.sdk.spec.problems import InvalidValue

_SUPPORTED = frozenset({"local", "s3", "gcs", "azure", *COMPATIBLE_STORES})
_EXTRAS = {"s3": "aws", "gcs": "gcp", "azure": "azure"}  # store → the extra that installs its SDK

# `type` of a mount → its rclone options, and whether it is read-only.
_PRESETS: dict[str, tuple[dict[str, Any], bool]] = {
    "MODEL_CHECKPOINT_RO": ({"vfs_read_chunk_streams": 16, "vfs_read_chunk_size": "32M"}, True),
    "MODEL_CHECKPOINT_RW": ({"vfs_read_chunk_streams": 16, "vfs_read_chunk_size": "32M", "transfers": 8}, False),
    "DATASET_RO": ({"vfs_read_chunk_streams": 0, "vfs_read_chunk_size": "8M"}, True),
    "DATASET_RW": ({"vfs_read_chunk_streams": 0, "vfs_read_chunk_size": "8M", "transfers": 16}, False),
}


@dataclass(frozen=True)
class BucketRequest:
    """A bucket that a task needs."""

    store: str
    bucket: str
    create: bool  # create it if it does not exist; False: it must exist
    persistent: bool = True  # False: removed after the job, if the job created it
    uploads: tuple[str, ...] = ()  # digests of the archives that are unpacked into it

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "uploads": list(self.uploads)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BucketRequest:
        return cls(**{**data, "uploads": tuple(data["uploads"])})


@dataclass(frozen=True)
class StoragePlan:
    """What a task's `file_mounts` require. Can be stored as JSON."""

    buckets: tuple[BucketRequest, ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()  # of the node spec, with `store` instead of `rclone`: see `node_mounts`
    uploads: tuple[dict[str, Any], ...] = ()  # of the node spec


def plan(
    file_mounts: Mapping[str, Any], *, stores: Collection[str], default_store: str, account: str | None = None
) -> StoragePlan:
    """Plan `file_mounts` of an accepted task config: path → URI, upload or storage object.

    The scheme of a URI, or `store:`, determines the store; a `name` alone is a bucket of `default_store`. `stores`: the
    names of the usable stores. `account`: the storage account of Azure containers that have only a name. Raises
    StorageError with the field.
    """
    builder = _PlanBuilder(frozenset(stores), default_store, account)
    for path, mount in file_mounts.items():
        builder.add(path, mount)
    return StoragePlan(tuple(builder.buckets.values()), tuple(builder.mounts), tuple(builder.uploads))


@dataclass
class _PlanBuilder:
    stores: frozenset[str]
    default_store: str
    account: str | None
    buckets: dict[tuple[str, str], BucketRequest] = field(default_factory=dict)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    uploads: list[dict[str, Any]] = field(default_factory=list)

    def add(self, path: str, mount: str | Mapping[str, Any]) -> None:
        where = f"file_mounts[{path}]"
        if isinstance(mount, str):
            self._add_mount(path, {"source": mount, "mode": "COPY"}, where)
        elif "upload" in mount:
            upload = {"path": path, "upload": mount["upload"], "is_file": bool(mount.get("is_file"))}
            self.uploads.append(upload)
        else:
            self._add_mount(path, mount, where)

    def _add_mount(self, path: str, mount: Mapping[str, Any], where: str) -> None:
        source = mount.get("source")
        if isinstance(source, str):
            uri = _parse_uri(source, f"{where}.source")
            store = self._usable_store(uri.store, f"{where}.source", shown=f"{source} ({uri.store})")
            bucket, prefix = (f"{uri.account}/{uri.bucket}" if store == "azure" else uri.bucket), uri.prefix
            request = BucketRequest(store, bucket, create=False)
        else:
            store = self._usable_store(mount.get("store") or self.default_store, f"{where}.store")
            bucket, prefix = self._bucket_name(str(mount["name"]), store, where), ""
            persistent = bool(mount.get("persistent", True))
            request = BucketRequest(store, bucket, create=True, persistent=persistent, uploads=_digests(source, where))
        check_bucket_name(bucket, store=store, where=where)
        self._add_bucket(request)
        options, read_only = _options(mount)
        self.mounts.append(
            {
                "path": path,
                "mode": mount.get("mode", "MOUNT"),
                "store": store,
                "bucket": bucket,
                "prefix": prefix,
                "read_only": read_only,
                "options": options,
            }
        )

    def _bucket_name(self, name: str, store: str, where: str) -> str:
        """The store's full name of the bucket: that of an Azure container includes its account."""
        if store != "azure":
            return name
        if self.account is None:
            raise StorageError(
                f"the storage account of container {name} is unknown",
                where=f"{where}.name",
                fix="set azure_blob.account in the controller's config.yaml or AZURE_STORAGE_ACCOUNT, or name an "
                "existing container as `source: https://<account>.blob.core.windows.net/<container>`",
            )
        return f"{self.account}/{name}"

    def _usable_store(self, store: str, where: str, *, shown: str = "") -> str:
        name = store.lower()
        if name in self.stores:
            return name
        usable = ", ".join(sorted(self.stores))
        fix = f"use a bucket of: {usable}"
        if name not in _SUPPORTED:
            raise StorageError(f"{shown or store.upper()} is not supported yet", where=where, fix=fix)
        if name in _EXTRAS:
            fix += f"; or run: {install_command(_EXTRAS[name])}, for the controller"
        elif name != "local":
            fix += f"; or add a section `{name}:` to the controller's config.yaml (see docs/guides/buckets.md)"
        raise StorageError(f"{shown or store.upper()} is not set up here", where=where, fix=fix)

    def _add_bucket(self, request: BucketRequest) -> None:
        key = (request.store, request.bucket)
        earlier = self.buckets.get(key)
        self.buckets[key] = request if earlier is None else _merge(earlier, request)


def _merge(first: BucketRequest, second: BucketRequest) -> BucketRequest:
    """One request for two mounts of a bucket: created if either creates it, persistent if a creating one is."""
    creating = [request for request in (first, second) if request.create]
    return replace(
        first,
        create=bool(creating),
        persistent=not creating or any(request.persistent for request in creating),
        uploads=tuple(dict.fromkeys((*first.uploads, *second.uploads))),
    )


def _parse_uri(uri: str, where: str) -> buckets.BucketURI:
    try:
        return buckets.parse(uri)
    except InvalidValue as error:
        raise StorageError(str(error), where=where) from error


def _digests(source: Any, where: str) -> tuple[str, ...]:
    if source is None:
        return ()
    uploads = source if isinstance(source, Sequence) else [source]
    if not all(isinstance(upload, Mapping) and "upload" in upload for upload in uploads):
        raise StorageError("a local source was not uploaded", where=f"{where}.source", fix="launch it with the client")
    return tuple(str(upload["upload"]) for upload in uploads)


def _options(mount: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """rclone's options, in which the user's override the preset's, and whether the mount is read-only."""
    preset, preset_read_only = _PRESETS.get(str(mount.get("type") or ""), ({}, False))
    config = mount.get("config") or {}
    chosen = dict(config.get("mount_cached") or {}) if mount.get("mode") == "MOUNT_CACHED" else {}
    plain = dict(config.get("mount") or {}) if mount.get("mode", "MOUNT") == "MOUNT" else {}
    read_only = bool(chosen.pop("read_only", plain.get("read_only", preset_read_only)))
    return {**preset, **chosen}, read_only


def ensure_bucket(request: BucketRequest, stores: Mapping[str, Store]) -> bool:
    """Create the bucket, or check that it exists; returns whether it was created.

    Record the result before `upload_contents`, so that the bucket can be removed. Raises StorageError, or the store's
    errors (`Store.classify`).
    """
    store = stores[request.store]
    if request.create:
        return store.ensure(request.bucket)
    if not store.exists(request.bucket):
        raise StorageError(
            f"there is no bucket {request.bucket} in {request.store}", fix="create it, or correct its name"
        )
    return False


def upload_contents(
    request: BucketRequest,
    stores: Mapping[str, Store],
    *,
    archive: Callable[[str], Path],
    max_bytes: int = MAX_UNPACKED_BYTES,
) -> None:
    """Unpack the request's uploads into its bucket. Idempotent. `archive`: digest → the tar.gz.

    `max_bytes`: what the files of one upload may amount to. Raises StorageError, or the store's errors.
    """
    store = stores[request.store]
    for digest in request.uploads:
        for name, body in read_files(archive(digest), request.bucket, max_bytes=max_bytes):
            store.put(request.bucket, name, body)


def node_mounts(
    mounts: Sequence[Mapping[str, Any]], stores: Mapping[str, Store], *, cloud: str | None = None
) -> list[dict[str, Any]]:
    """A plan's `mounts` as in the spec of a node of `cloud` (docs/reference/agent-protocol.md).

    They contain secrets and must not be stored. Raises StorageError, or the store's errors.
    """
    return [_node_mount(mount, stores[mount["store"]], cloud) for mount in mounts]


def _node_mount(mount: Mapping[str, Any], store: Store, cloud: str | None) -> dict[str, Any]:
    writes = not mount["read_only"] and mount["mode"] != "COPY"
    access = Access(cloud, writes=writes, prefix=str(mount.get("prefix") or ""))
    return {
        **{key: value for key, value in mount.items() if key != "store"},
        "bucket": mount["bucket"].rpartition("/")[2],  # of `account/container`
        "rclone": store.rclone_remote(mount["bucket"], access),
    }
