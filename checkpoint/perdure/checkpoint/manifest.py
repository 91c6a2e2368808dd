"""The commit record of a save: `<save_dir>/.perdure/<prefix>-<step, 12 digits>-<unique>.json`.

A save counts once its manifest exists, and the manifest is written last: to a temporary name, flushed, then renamed. No
name is ever used twice, so a reader on another machine never sees half of an old and half of a new one. A manifest
carries a checksum of itself; one that does not match is damaged, whatever it says.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from perdure.checkpoint import durability
from perdure.checkpoint.errors import CheckpointError, patiently
from perdure.checkpoint.snapshot import OWN_DIR

FORMAT = 1
_SUFFIX = ".json"
_STARTED = ".started"
_TEMPORARY = ".tmp-"
DAMAGED = ".damaged"  # after a manifest's name: somebody found its files broken (`marks`)
# What file systems answer that have no fsync for directories.
_NO_FSYNC_ERRNOS = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES, errno.EBADF})


class ManifestDamaged(CheckpointError):
    """A manifest can be read but not believed."""


class Entry(NamedTuple):
    """A manifest as its file name tells it; its content is not read yet."""

    prefix: str
    step: int
    name: str


@dataclass(frozen=True)
class FileRecord:
    """One file of a checkpoint: path relative to the save_dir, size in bytes, digest in lower-case hex; `sample` is
    that of a sample of it (`samples`), empty in checkpoints of older versions."""

    path: str
    size: int
    digest: str
    algorithm: str
    sample: str = ""


@dataclass(frozen=True)
class Manifest:
    """What one save committed. `created_at` is ISO 8601 UTC; `written_by` and `versions` are for people; `metrics`
    (numbers by name) may decide how long it is kept."""

    prefix: str
    step: int
    created_at: str
    files: tuple[FileRecord, ...]
    metadata: Mapping[str, Any]
    written_by: Mapping[str, Any]
    versions: Mapping[str, str]
    metrics: Mapping[str, float] = field(default_factory=dict)
    name: str = ""

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(record.path for record in self.files)

    @property
    def order(self) -> tuple[int, str, str]:
        """Sorts manifests of one step, oldest first: by generation, then time (clocks of machines differ)."""
        generation = self.written_by.get("generation")
        return (generation if isinstance(generation, int) else 0, self.created_at, self.name)


def entries(root: str) -> list[Entry]:
    """Every manifest under `root`, newest step first. Empty where nothing was ever saved.

    Raises CheckpointUnavailable when the directory can not be read.
    """
    found = [entry for entry in map(_entry, _listing(root)) if entry is not None]
    return sorted(found, key=lambda entry: (entry.step, entry.name), reverse=True)


def read(root: str, name: str) -> Manifest:
    """The manifest called `name`. Raises ManifestDamaged, or CheckpointUnavailable when it can not be read now."""
    try:
        content = patiently(lambda: _content(path_of(root, name)), path_of(root, name))
    except FileNotFoundError as error:
        raise ManifestDamaged(f"its manifest {name} vanished") from error
    try:
        document = json.loads(content)
        if document.get("format") != FORMAT:
            raise ManifestDamaged(
                f"its manifest {name} has format {document.get('format')!r}; this version reads {FORMAT}"
            )
        if document.pop("checksum", None) != _checksum(document):
            raise ManifestDamaged(f"its manifest {name} does not match its own checksum")
        manifest = _parsed(document, name)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestDamaged(f"its manifest {name} is not whole ({len(content)} bytes: {error})") from error
    entry = _entry(name)
    if entry is None or (entry.prefix, entry.step) != (manifest.prefix, manifest.step):
        raise ManifestDamaged(f"its manifest {name} belongs to {manifest.prefix!r} step {manifest.step}")
    return manifest


def write(root: str, manifest: Manifest) -> Manifest:
    """Commit: after this returns the manifest is on disk, under a name of its own. Raises OSError."""
    name = f"{_stem(manifest.prefix, manifest.step)}{_SUFFIX}"
    document = {"format": FORMAT, **asdict(manifest)}
    del document["name"]
    document["checksum"] = _checksum(document)
    os.makedirs(os.path.join(root, OWN_DIR), exist_ok=True)
    temporary = path_of(root, _TEMPORARY + name)
    try:
        _write_synced(temporary, json.dumps(document, indent=1))
        os.replace(temporary, path_of(root, name))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(os.path.join(root, OWN_DIR))
    return Manifest(**{**vars(manifest), "name": name})


def delete(root: str, name: str) -> None:
    """Uncommit. One that is gone already is a success. Raises OSError."""
    for each in (name, name + DAMAGED):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path_of(root, each))


def announce(root: str, prefix: str, step: int) -> None:
    """Say that a save of `step` has begun, so that its files are never taken for somebody's finished checkpoint.

    Only needed while there is no manifest at all: from the first one on, a file that no manifest lists does not count.
    """
    os.makedirs(os.path.join(root, OWN_DIR), exist_ok=True)
    _write_synced(path_of(root, _stem(prefix, step) + _STARTED), json.dumps({"prefix": prefix, "step": step}))
    sync_directory(os.path.join(root, OWN_DIR))


def announced(root: str) -> dict[str, int]:
    """Saves that began while there was no manifest: file name → step."""
    started = [name for name in _listing(root) if name.endswith(_STARTED)]
    return {name: entry.step for name in started if (entry := _entry(name[: -len(_STARTED)] + _SUFFIX))}


def path_of(root: str, name: str) -> str:
    return os.path.join(root, OWN_DIR, name)


def sync_directory(path: str) -> None:
    """Flush a directory's names to its disk, where the file system can."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FSYNC_ERRNOS:
            raise
    finally:
        os.close(descriptor)


def _listing(root: str) -> list[str]:
    directory = os.path.join(root, OWN_DIR)
    try:
        return patiently(lambda: os.listdir(directory), directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _stem(prefix: str, step: int) -> str:
    return f"{prefix}-{step:012d}-{os.urandom(4).hex()}"


def _entry(name: str) -> Entry | None:
    if not name.endswith(_SUFFIX) or name.startswith(_TEMPORARY):
        return None
    prefix, _, rest = name[: -len(_SUFFIX)].rpartition("-")
    prefix, _, step = prefix.rpartition("-")
    if not prefix or not rest or not (step.isascii() and step.isdigit()):
        return None
    return Entry(prefix, int(step), name)


def _content(path: str) -> bytes:
    with open(durability.where_to_read(path), "rb") as file:
        return file.read()


def _write_synced(path: str, text: str) -> None:
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _checksum(document: Mapping[str, Any]) -> str:
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return f"crc32:{zlib.crc32(canonical.encode()):08x}"


def _parsed(document: dict[str, Any], name: str) -> Manifest:
    files = tuple(
        FileRecord(str(f["path"]), int(f["size"]), str(f["digest"]), str(f["algorithm"]), str(f.get("sample", "")))
        for f in document["files"]
    )
    if not files:
        raise ValueError("no files")
    for record in files:
        if os.path.isabs(record.path) or ".." in record.path.split("/"):
            raise ValueError(f"path {record.path!r} leads out of the directory")
    return Manifest(
        prefix=document["prefix"],
        step=int(document["step"]),
        created_at=document["created_at"],
        files=files,
        metadata=dict(document["metadata"]),
        written_by=dict(document["written_by"]),
        versions=dict(document["versions"]),
        metrics=dict(document.get("metrics", {})),
        name=name,
    )
