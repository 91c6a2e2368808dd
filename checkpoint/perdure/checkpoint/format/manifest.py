"""The commit record of a save: `<save_dir>/.perdure/<prefix>-<step, 12 digits>-<unique>.json`.

A save counts once its manifest exists, and the manifest is written last: to a temporary name, flushed, then renamed. No
name is ever used twice, so a reader on another machine never sees half of an old and half of a new one. A manifest
carries its own checksum; one that does not match is damaged.

This module reads and writes single manifests and interprets listings. It keeps no state: what a process has listed and
read is cached in `load.directory_cache`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from perdure.checkpoint.durability import status
from perdure.checkpoint.durability.file_version import FileVersion
from perdure.checkpoint.durability.mounts import MountSnapshot
from perdure.checkpoint.errors import CheckpointError, retry_transient
from perdure.checkpoint.format import block_digests, part_names
from perdure.checkpoint.format.file_changes import OWN_DIR
from perdure.checkpoint.format.regular_file import open_regular

FORMAT = 2
_READABLE_FORMATS = (1, FORMAT)  # 1: no file has digests of its blocks
_SUFFIX = ".json"
_STARTED_SUFFIX = ".started"
_TEMP_PREFIX = ".tmp-"
DAMAGED_SUFFIX = ".damaged"  # after a manifest's name: its files were found damaged (`load.damage_marks`)
_BLOCK_ALIGNMENT = 4096  # what a read past the page cache needs
_MAX_NAME_BYTES = 255  # of a file, on every file system
# Errors of file systems that have no fsync for directories.
_NO_FSYNC_ERRNOS = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES, errno.EBADF})


class ManifestDamaged(CheckpointError):
    """A manifest can be read, but its content is not valid."""


class ManifestEntry(NamedTuple):
    """A manifest of which only the file name is known; its content is not read yet."""

    prefix: str
    step: int
    name: str


@dataclass(frozen=True)
class FileRecord:
    """One file of a checkpoint."""

    path: str  # relative to the save_dir
    size: int  # bytes
    digest: str  # lower-case hex; of a file with several blocks, the digest of theirs (`block_digests`)
    algorithm: str
    sample: str = ""  # digest of a sample (`sampling`); empty if none was taken
    # These two identify the content in the bucket (`FileVersion`). A file whose time was set anew is the same file.
    mtime_ns: Sequence[int] = field(default=(), compare=False)  # earliest and latest; empty: unknown, or a unique name
    crc32: int = field(default=-1, compare=False)  # of a file that may grow; otherwise -1
    block_bytes: int = 0  # size of a block; 0: `digest` is that of the whole content
    blocks: str = ""  # the digests of the blocks, one after another

    @property
    def block_digests(self) -> list[str]:
        """The digest of each block, in their order; empty if only that of the whole content is known."""
        if not self.block_bytes:
            return []
        return block_digests.split(self.blocks, block_digests.count_blocks(self.size, self.block_bytes))

    @property
    def version(self) -> FileVersion | None:
        """The content that was committed; None if the name alone tells."""
        if part_names.is_unique(self.path):
            return None
        return FileVersion.from_fields((self.size, *self.mtime_ns, self.crc32))


@dataclass(frozen=True)
class Manifest:
    """What one save committed."""

    prefix: str
    step: int
    created_at: str  # ISO 8601, UTC
    files: tuple[FileRecord, ...]
    metadata: Mapping[str, Any]
    # For people, except `generation`, which orders saves of one step, and `function`, by which retention counts.
    written_by: Mapping[str, Any]
    versions: Mapping[str, str]  # for people
    metrics: Mapping[str, float] = field(default_factory=dict)  # `Keep(best=…)` may choose by them
    name: str = ""  # of its file; empty until it is committed

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(record.path for record in self.files)

    def file_versions(self, root: str) -> dict[str, FileVersion | None]:
        """Absolute paths of its files, each with the content that was committed, and of itself."""
        files = {os.path.join(root, record.path): record.version for record in self.files}
        return {**files, path_of(root, self.name): None}

    @property
    def function(self) -> str:
        """The function that wrote it; empty if it is not known."""
        return str(self.written_by.get("function") or "")

    @property
    def order(self) -> tuple[int, str, str]:
        """Sorts manifests of one step, oldest first: by generation, then time (clocks of machines differ)."""
        generation = self.written_by.get("generation")
        return (generation if isinstance(generation, int) else 0, self.created_at, self.name)


def list_manifests(root: str) -> list[ManifestEntry]:
    """Every manifest under `root`, newest step first. Empty if nothing was ever saved.

    Raises CheckpointUnavailable when the directory cannot be read.
    """
    return manifests_among(list_names(root))


def list_started(root: str) -> dict[str, int]:
    """Saves that began before there was any manifest: file name → step. Raises as `list_manifests`."""
    return started_among(list_names(root))


def list_names(root: str) -> list[str]:
    """The names in the folder of the manifests, from one listing. Raises as `list_manifests`."""
    directory = os.path.join(root, OWN_DIR)
    try:
        return retry_transient(lambda: os.listdir(directory), directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def manifests_among(names: Iterable[str]) -> list[ManifestEntry]:
    """The manifests in a listing, newest step first."""
    entries = [entry for entry in map(_parse_name, names) if entry is not None]
    return sorted(entries, key=lambda entry: (entry.step, entry.name), reverse=True)


def temporaries_among(names: Iterable[str]) -> list[str]:
    """The manifests in a listing that are being written, or that a killed process left unfinished."""
    return [name for name in names if name.startswith(_TEMP_PREFIX)]


def started_among(names: Iterable[str]) -> dict[str, int]:
    """The saves in a listing that began before there was any manifest: file name → step."""
    started = [name for name in names if name.endswith(_STARTED_SUFFIX)]
    return {name: entry.step for name in started if (entry := _parse_name(name[: -len(_STARTED_SUFFIX)] + _SUFFIX))}


def started_prefixes(names: Iterable[str]) -> set[str]:
    """The series in a listing whose saves have begun, and that had no manifest then."""
    stems = (name[: -len(_STARTED_SUFFIX)] for name in names if name.endswith(_STARTED_SUFFIX))
    return {entry.prefix for stem in stems if (entry := _parse_name(stem + _SUFFIX))}


def load(root: str, name: str, mounts: MountSnapshot | None = None) -> Manifest:
    """Read the manifest called `name`. Raises ManifestDamaged, or CheckpointUnavailable when it cannot be read now."""
    try:
        content = retry_transient(lambda: _read_bytes(path_of(root, name), mounts), path_of(root, name))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ManifestDamaged(f"its manifest {name} vanished, or is not a file") from error
    try:
        document = json.loads(content)
        if document.get("format") not in _READABLE_FORMATS:
            raise ManifestDamaged(
                f"its manifest {name} has format {document.get('format')!r}; this version reads up to {FORMAT}"
            )
        if document.pop("checksum", None) != _checksum(document):
            raise ManifestDamaged(f"its manifest {name} does not match its own checksum")
        manifest = _parse(document, name)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ManifestDamaged(f"its manifest {name} is incomplete ({len(content)} bytes: {error})") from error
    entry = _parse_name(name)
    if entry is None or (entry.prefix, entry.step) != (manifest.prefix, manifest.step):
        raise ManifestDamaged(f"its manifest {name} belongs to {manifest.prefix!r} step {manifest.step}")
    return manifest


def write(root: str, manifest: Manifest) -> Manifest:
    """Write `manifest` under a new name and flush it; returns it with that name. Raises OSError."""
    name = f"{_stem(manifest.prefix, manifest.step)}{_SUFFIX}"
    document = {"format": FORMAT, **asdict(manifest)}
    del document["name"]
    document["checksum"] = _checksum(document)
    _write_under_final_name(root, name, json.dumps(document, indent=1))
    return Manifest(**{**vars(manifest), "name": name})


def delete(root: str, name: str) -> None:
    """Remove a manifest and its damage mark. Succeeds if they are gone already. Raises OSError."""
    for each in (name, name + DAMAGED_SUFFIX):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path_of(root, each))


def mark_started(root: str, prefix: str, step: int) -> str:
    """Record that a save of `step` has begun, so that its files never pass for a finished checkpoint of other code, nor
    for one whose manifest was lost.

    Only needed until there is a manifest: from then on, a file that no manifest lists does not count. Returns the name
    of the record. Raises OSError.
    """
    return write_record(root, prefix, step, _STARTED_SUFFIX, json.dumps({"prefix": prefix, "step": step}))


def write_record(root: str, prefix: str, step: int, suffix: str, text: str) -> str:
    """Write a file of another kind beside the manifests, and flush it; returns its name. Raises OSError."""
    name = _stem(prefix, step) + suffix
    _write_under_final_name(root, name, text)
    return name


def path_of(root: str, name: str) -> str:
    return os.path.join(root, OWN_DIR, name)


def sync_directory(path: str) -> None:
    """Flush the names in a directory to its disk, if the file system supports it. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FSYNC_ERRNOS:
            raise
    finally:
        os.close(descriptor)


def _stem(prefix: str, step: int) -> str:
    return f"{prefix}-{step:012d}-{os.urandom(4).hex()}"


def _parse_name(name: str) -> ManifestEntry | None:
    if not name.endswith(_SUFFIX) or name.startswith(_TEMP_PREFIX):
        return None
    prefix, _, rest = name[: -len(_SUFFIX)].rpartition("-")
    prefix, _, step = prefix.rpartition("-")
    if not prefix or not rest or not (step.isascii() and step.isdigit()):
        return None
    return ManifestEntry(prefix, int(step), name)


def _read_bytes(path: str, mounts: MountSnapshot | None) -> bytes:
    with open_regular(status.readable_path(path, mounts)) as file:
        return file.readall()


def _write_under_final_name(root: str, name: str, text: str) -> None:
    """Write and flush a file of which readers see all or nothing. Raises OSError."""
    os.makedirs(os.path.join(root, OWN_DIR), exist_ok=True)
    temporary = path_of(root, _TEMP_PREFIX + name)
    try:
        _write_synced(temporary, text)
        os.replace(temporary, path_of(root, name))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(os.path.join(root, OWN_DIR))


def _write_synced(path: str, text: str) -> None:
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _checksum(document: Mapping[str, Any]) -> str:
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return f"crc32:{zlib.crc32(canonical.encode()):08x}"


def _validate_blocks(record: FileRecord) -> None:
    """Raise ValueError for digests of blocks that no save has recorded."""
    if not record.block_bytes:
        if record.blocks:
            raise ValueError(f"{record.path} has digests of blocks of no size")
    elif not 0 < record.block_bytes <= block_digests.MAX_BLOCK_BYTES or record.block_bytes % _BLOCK_ALIGNMENT:
        raise ValueError(f"{record.path} has blocks of {record.block_bytes} bytes")
    elif record.size <= record.block_bytes or len(record.block_digests[0]) != len(record.digest):
        raise ValueError(f"{record.path} has other digests of blocks than of the file")
    bytes.fromhex(record.blocks)


def _parse(document: dict[str, Any], name: str) -> Manifest:
    files = tuple(
        FileRecord(
            path=str(f["path"]),
            size=int(f["size"]),
            digest=str(f["digest"]),
            algorithm=str(f["algorithm"]),
            sample=str(f.get("sample", "")),
            mtime_ns=tuple(f.get("mtime_ns", ())),
            crc32=int(f.get("crc32", -1)),
            block_bytes=int(f.get("block_bytes", 0)),
            blocks=str(f.get("blocks", "")),
        )
        for f in document["files"]
    )
    if not files:
        raise ValueError("no files")
    for record in files:
        _validate_blocks(record)
        names = os.fsencode(record.path).split(b"/")  # raises UnicodeEncodeError, a ValueError
        if "\0" in record.path or max(map(len, names)) > _MAX_NAME_BYTES:
            raise ValueError(f"path {record.path!r} cannot be the name of a file")
        if os.path.isabs(record.path) or ".." in record.path.split("/"):
            raise ValueError(f"path {record.path!r} leads out of the directory")
    return Manifest(
        prefix=document["prefix"],
        step=int(document["step"]),
        created_at=str(document["created_at"]),
        files=files,
        metadata=dict(document["metadata"]),
        written_by=dict(document["written_by"]),
        versions=dict(document["versions"]),
        metrics=dict(document.get("metrics", {})),
        name=name,
    )
