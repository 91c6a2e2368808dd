"""From a task's `file_mounts` to what has to exist (buckets) and to what nodes mount.

`plan` is pure: it asks no store. `make` and `fill` bring the buckets about, `node_mounts` adds what a node needs to
reach them, secrets among it, when the node asks.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from perdure.controller.storage.compatible import KINDS
from perdure.controller.storage.stores import Access, StorageError, Store, check_bucket_name
from perdure.sdk import buckets
from perdure.sdk.problems import Refused

_SUPPORTED = frozenset({"local", "s3", "gcs", "azure", *KINDS})
_EXTRAS = {"s3": "aws", "gcs": "gcp", "azure": "azure"}  # store → what is installed for it

# `type` of a mount → the options that it stands for, and whether it is read-only.
_PRESETS: dict[str, tuple[dict[str, Any], bool]] = {
    "MODEL_CHECKPOINT_RO": ({"vfs_read_chunk_streams": 16, "vfs_read_chunk_size": "32M"}, True),
    "MODEL_CHECKPOINT_RW": ({"vfs_read_chunk_streams": 16, "vfs_read_chunk_size": "32M", "transfers": 8}, False),
    "DATASET_RO": ({"vfs_read_chunk_streams": 0, "vfs_read_chunk_size": "8M"}, True),
    "DATASET_RW": ({"vfs_read_chunk_streams": 0, "vfs_read_chunk_size": "8M", "transfers": 16}, False),
}


@dataclass(frozen=True)
class BucketWish:
    """A bucket that a task needs. `create`: make it if it is not there; else it must be there.

    `persistent` False: it ends with the job, if the job made it. `uploads`: digests of archives whose content goes in.
    """

    store: str
    bucket: str
    create: bool
    persistent: bool = True
    uploads: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "uploads": list(self.uploads)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BucketWish:
        return cls(**{**data, "uploads": tuple(data["uploads"])})


@dataclass(frozen=True)
class StoragePlan:
    """What a task's `file_mounts` ask for. All of it can be stored as JSON.

    `uploads` are the node spec's. `mounts` are the node spec's with `store` in place of `rclone`: see `node_mounts`.
    """

    wishes: tuple[BucketWish, ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()
    uploads: tuple[dict[str, Any], ...] = ()


def plan(
    file_mounts: Mapping[str, Any], *, stores: Collection[str], default_store: str, account: str | None = None
) -> StoragePlan:
    """What `file_mounts` (of an accepted task config: path → URI, upload or storage object) come to.

    The scheme of a URI decides about the store, or `store:`; a bare `name` is a bucket of `default_store`. `stores`:
    the names of those that can be used. `account`: the storage account of Azure's containers that are only named.
    Raises StorageError with the field.
    """
    planned = _Planned(frozenset(stores), default_store, account)
    for path, mount in file_mounts.items():
        planned.add(path, mount)
    return StoragePlan(tuple(planned.wishes.values()), tuple(planned.mounts), tuple(planned.uploads))


@dataclass
class _Planned:
    stores: frozenset[str]
    default_store: str
    account: str | None
    wishes: dict[tuple[str, str], BucketWish] = field(default_factory=dict)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    uploads: list[dict[str, Any]] = field(default_factory=list)

    def add(self, path: str, mount: str | Mapping[str, Any]) -> None:
        where = f"file_mounts[{path}]"
        if isinstance(mount, str):
            self._bucket(path, {"source": mount, "mode": "COPY"}, where)
        elif "upload" in mount:
            upload = {"path": path, "upload": mount["upload"], "is_file": bool(mount.get("is_file"))}
            self.uploads.append(upload)
        else:
            self._bucket(path, mount, where)

    def _bucket(self, path: str, mount: Mapping[str, Any], where: str) -> None:
        source = mount.get("source")
        if isinstance(source, str):
            uri = _parsed(source, f"{where}.source")
            store = self._usable(uri.store, f"{where}.source", shown=f"{source} ({uri.store})")
            bucket, prefix = (f"{uri.account}/{uri.bucket}" if store == "azure" else uri.bucket), uri.prefix
            wish = BucketWish(store, bucket, create=False)
        else:
            store = self._usable(mount.get("store") or self.default_store, f"{where}.store")
            bucket, prefix = self._named(str(mount["name"]), store, where), ""
            persistent = bool(mount.get("persistent", True))
            wish = BucketWish(store, bucket, create=True, persistent=persistent, uploads=_digests(source, where))
        check_bucket_name(bucket, store=store, where=where)
        self._wish(wish)
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

    def _named(self, name: str, store: str, where: str) -> str:
        """What the store calls it. A container is named within an account alone."""
        if store != "azure":
            return name
        if self.account is None:
            raise StorageError(
                f"the storage account of container {name} is not known",
                where=f"{where}.name",
                fix="set azure_blob.account in the controller's config.yaml or AZURE_STORAGE_ACCOUNT, or name an "
                "existing container as `source: https://<account>.blob.core.windows.net/<container>`",
            )
        return f"{self.account}/{name}"

    def _usable(self, store: str, where: str, *, shown: str = "") -> str:
        name = store.lower()
        if name in self.stores:
            return name
        usable = ", ".join(sorted(self.stores))
        fix = f"use a bucket of: {usable}"
        if name not in _SUPPORTED:
            raise StorageError(f"{shown or store.upper()} is not supported yet", where=where, fix=fix)
        if name in _EXTRAS:
            fix += f"; or install perdure[{_EXTRAS[name]}] for the controller"
        elif name != "local":
            fix += f"; or add a section `{name}:` to the controller's config.yaml (see docs/buckets.md)"
        raise StorageError(f"{shown or store.upper()} is not set up here", where=where, fix=fix)

    def _wish(self, wish: BucketWish) -> None:
        key = (wish.store, wish.bucket)
        known = self.wishes.get(key)
        self.wishes[key] = wish if known is None else _merged(known, wish)


def _merged(one: BucketWish, other: BucketWish) -> BucketWish:
    """Several mounts of one bucket are one wish: made if any asks for it, kept if any that makes it asks for that."""
    makers = [wish for wish in (one, other) if wish.create]
    return replace(
        one,
        create=bool(makers),
        persistent=not makers or any(wish.persistent for wish in makers),
        uploads=tuple(dict.fromkeys((*one.uploads, *other.uploads))),
    )


def _parsed(uri: str, where: str) -> buckets.BucketURI:
    try:
        return buckets.parse(uri)
    except Refused as error:
        raise StorageError(str(error), where=where) from error


def _digests(source: Any, where: str) -> tuple[str, ...]:
    if source is None:
        return ()
    uploads = source if isinstance(source, Sequence) else [source]
    if not all(isinstance(upload, Mapping) and "upload" in upload for upload in uploads):
        raise StorageError("a local source was not uploaded", where=f"{where}.source", fix="launch it with the client")
    return tuple(str(upload["upload"]) for upload in uploads)


def _options(mount: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """rclone's options, the user's over the preset's, and whether the mount is read-only."""
    preset, preset_read_only = _PRESETS.get(str(mount.get("type") or ""), ({}, False))
    config = mount.get("config") or {}
    chosen = dict(config.get("mount_cached") or {}) if mount.get("mode") == "MOUNT_CACHED" else {}
    plain = dict(config.get("mount") or {}) if mount.get("mode", "MOUNT") == "MOUNT" else {}
    read_only = bool(chosen.pop("read_only", plain.get("read_only", preset_read_only)))
    return {**preset, **chosen}, read_only


def make(wish: BucketWish, stores: Mapping[str, Store]) -> bool:
    """Bring the bucket about; returns whether it was made. Record that before `fill`, so that it can be removed.

    Raises StorageError, or the store's errors (`Store.classify`).
    """
    store = stores[wish.store]
    if wish.create:
        return store.ensure(wish.bucket)
    if not store.exists(wish.bucket):
        raise StorageError(f"there is no bucket {wish.bucket} in {wish.store}", fix="create it, or correct its name")
    return False


def fill(wish: BucketWish, stores: Mapping[str, Store], *, archive: Callable[[str], Path]) -> None:
    """Put the content of the wish's uploads into its bucket. May be repeated. `archive`: digest → the tar.gz.

    Raises StorageError, or the store's errors.
    """
    for digest in wish.uploads:
        unpack_into(stores[wish.store], wish.bucket, archive(digest))


def unpack_into(store: Store, bucket: str, archive: Path) -> None:
    """Put every file of a tar or tar.gz into the bucket. A bucket has no links: what a link points to is put."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if not member.isdir():
                    _put_member(store, bucket, tar, member)
    except tarfile.TarError as error:
        raise StorageError(f"the upload {archive.name} is no archive: {error}", fix="launch the job again") from error


def _put_member(store: Store, bucket: str, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    try:
        body = tar.extractfile(member)
    except KeyError:
        body = None
    if body is None:
        raise StorageError(
            f"{member.name} is a link out of the files that go into bucket {bucket}, or to a directory",
            fix="put the files themselves in its place",
        )
    with body:
        store.put(bucket, member.name.removeprefix("./"), body)


def node_mounts(
    mounts: Sequence[Mapping[str, Any]], stores: Mapping[str, Store], *, cloud: str | None = None
) -> list[dict[str, Any]]:
    """A plan's `mounts` as a spec for a node of `cloud` has them (docs/agent-protocol.md). Holds secrets: not to be
    stored.

    Raises StorageError, or the store's errors.
    """
    return [_node_mount(mount, stores[mount["store"]], cloud) for mount in mounts]


def _node_mount(mount: Mapping[str, Any], store: Store, cloud: str | None) -> dict[str, Any]:
    access = Access(cloud, writes=not mount["read_only"] and mount["mode"] != "COPY")
    return {
        **{key: value for key, value in mount.items() if key != "store"},
        "bucket": mount["bucket"].rpartition("/")[2],  # of `account/container`
        "rclone": store.rclone_remote(mount["bucket"], access),
    }
