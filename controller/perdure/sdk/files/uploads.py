"""Packs the local files of a task, and uploads the archives that the controller does not have yet.

A directory or file becomes a tar.gz named by its SHA-256. The same files give the same digest (sorted, no owners, no
packing time), so a second launch of an unchanged tree uploads nothing. Everything is packed before the first upload.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from perdure.sdk.connection.client import Client
from perdure.sdk.connection.endpoint import ClientError
from perdure.sdk.files import file_list
from perdure.sdk.files.packing_folder import packing_folder
from perdure.sdk.files.tar_writer import TarWriter

Config = dict[str, Any]
WARN_ABOVE_BYTES = 500_000_000
_MAX_NAMES = 5  # of files that are not sent
_COMPRESSION = 3  # measured on source trees: within 8% of the size of level 6 in a third of its time


class UploadError(ClientError):
    """A file of the task cannot be read or uploaded."""


@dataclass(frozen=True)
class Archive:
    """A packed file or directory."""

    source: Path
    path: Path  # a temporary file
    sha256: str
    size_bytes: int
    is_file: bool
    files: int  # the number of files and links in it


@dataclass(frozen=True)
class PackedTasks:
    """Task configurations in the form of the API, and the archives that they name."""

    tasks: list[Config]
    archives: dict[str, Archive]  # by SHA-256
    held_back: Mapping[str, list[str]] = field(default_factory=dict)  # workdir → files that an ignore file excludes
    not_ignored: Mapping[str, list[str]] = field(default_factory=dict)  # workdir → those that only git would exclude

    @property
    def warnings(self) -> list[str]:
        """A line for each workdir of which files are not sent, or are although a `.gitignore` excludes them, and for
        each archive that is suspiciously large."""
        unsent = [_held_back_line(workdir, names) for workdir, names in self.held_back.items()]
        sent = [_not_ignored_line(workdir, names) for workdir, names in self.not_ignored.items()]
        return [*unsent, *sent] + [
            f"{archive.source} is {format_size(archive.size_bytes)} in {archive.files} files; "
            f"exclude files that are not needed with a {file_list.IGNORE_FILE} file"
            for archive in self.archives.values()
            if archive.size_bytes > WARN_ABOVE_BYTES
        ]


@contextlib.contextmanager
def pack_tasks(tasks: Sequence[Config], on_read: Callable[[int], object] = lambda _: None) -> Iterator[PackedTasks]:
    """Pack every local path of `tasks`. The archives exist as long as the block. Raises UploadError.

    `on_read` receives the number of bytes of each block that is read.

    Local paths are a `workdir` that is a string, and sources of file mounts and storages without `://`. Relative paths
    start at the current directory.
    """
    with packing_folder() as folder:
        packer = _Packer(folder, on_read)
        packed = [_pack_task(task, packer) for task in tasks]
        yield PackedTasks(packed, packer.by_digest, packer.held_back, packer.not_ignored)


UploadProgress = Callable[[Archive], contextlib.AbstractContextManager[Callable[[int], object]]]
"""A context manager around the upload of an archive. It yields a function that receives the size of each block."""


@contextlib.contextmanager
def no_progress(_: Archive) -> Iterator[Callable[[int], object]]:
    """An `UploadProgress` that shows nothing."""
    yield lambda _bytes: None


def send(
    client: Client,
    archives: Mapping[str, Archive],
    *,
    on_message: Callable[[str], None] = lambda _: None,
    progress: UploadProgress = no_progress,
) -> None:
    """Upload the archives that the controller lacks. `on_message` receives a line before each upload."""
    for archive in archives.values():
        if client.has_upload(archive.sha256):
            continue
        plural = "" if archive.files == 1 else "s"
        on_message(f"Uploading {archive.source} ({archive.files} file{plural}, {format_size(archive.size_bytes)})")
        with open(archive.path, "rb") as data, progress(archive) as count:
            client.put_upload(archive.sha256, cast("IO[bytes]", _CountingReader(data, count)), archive.size_bytes)


def pack(
    source: Path,
    target: Path,
    *,
    is_workdir: bool,
    is_named: bool = False,
    on_read: Callable[[int], object] = lambda _: None,
) -> Archive:
    """Pack `source` into the tar.gz `target`: the content of a directory, or one file under its own name.

    `is_named`: also pack a directory under its own name, so that several can be side by side. `on_read` receives the
    number of bytes of each block that is read.
    """
    with _translate_os_errors(source):
        is_file = not stat.S_ISDIR(source.stat().st_mode)
        if is_file:
            root, names = source.parent, [source.name]
        else:
            root, names = source, file_list.list_directory(source, is_workdir=is_workdir)
            if is_named:
                root, names = source.parent, [f"{source.name}/{name}" for name in names]
    files, path, prefix = 0, str(source), "" if root == Path() else f"{root}/"
    with open(target, "wb") as raw:
        hashing = _HashingWriter(raw)
        with gzip.GzipFile(filename="", mode="wb", compresslevel=_COMPRESSION, fileobj=hashing, mtime=0) as zipped:
            archive = TarWriter(cast("IO[bytes]", zipped), on_read)
            try:
                for name in names:
                    path = prefix + name
                    files += archive.add(path, name, follow=is_file)
                archive.close()
            except OSError as error:
                raise _upload_error(error, path) from error
    return Archive(source, target, hashing.digest.hexdigest(), hashing.size_bytes, is_file, files)


def format_size(size_bytes: float) -> str:
    """A size for people: `312 B`, `4.2 MB`."""
    for unit in ("B", "KB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "B" or size_bytes >= 100 else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


class _Packer:
    """Packs each source once, even if several tasks mount it."""

    def __init__(self, folder: Path, on_read: Callable[[int], object]) -> None:
        self._folder, self._on_read = folder, on_read
        self._by_source: dict[tuple[str, bool, bool], Archive] = {}
        self.by_digest: dict[str, Archive] = {}
        self.held_back: dict[str, list[str]] = {}
        self.not_ignored: dict[str, list[str]] = {}

    def pack(self, source: str, *, is_workdir: bool = False, is_named: bool = False) -> Archive:
        path = Path(os.path.abspath(os.path.expanduser(source)))
        key = (str(path), is_workdir, is_named)
        if key not in self._by_source:
            target = self._folder / f"{len(self._by_source)}.tar.gz"
            archive = pack(path, target, is_workdir=is_workdir, is_named=is_named, on_read=self._on_read)
            self._by_source[key] = archive
            if is_workdir:
                self._check_ignored(path, source)
            self.by_digest.setdefault(archive.sha256, archive)
        return self._by_source[key]

    def _check_ignored(self, workdir: Path, source: str) -> None:
        with _translate_os_errors(workdir):
            sent = file_list.list_directory(workdir, is_workdir=True)
            if names := file_list.held_back(workdir, sent):
                self.held_back[source] = names
            if names := file_list.sent_though_ignored(workdir, sent):
                self.not_ignored[source] = names


def _held_back_line(workdir: str, names: Sequence[str]) -> str:
    decides = file_list.IGNORE_FILE if (Path(workdir).expanduser() / file_list.IGNORE_FILE).is_file() else ".gitignore"
    fix = f"put `!{names[0]}` into {file_list.IGNORE_FILE}"
    fix = f"pass it with --env-file, or {fix}" if names[0].startswith(".env") else f"to send it, {fix}"
    return f"not sent with the workdir {workdir}, since {decides} excludes it: {_shown(names)}; {fix}"


def _not_ignored_line(workdir: str, names: Sequence[str]) -> str:
    return (
        f"sent with the workdir {workdir}, although a {file_list.GIT_IGNORE_FILE} excludes it: {_shown(names)}; "
        f"{file_list.GIT_IGNORE_FILE} counts only in a git repository; to leave it out, run `git init` there, or put "
        f"the patterns into {file_list.IGNORE_FILE}"
    )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMES]) + (f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")


def _pack_task(task: Config, packer: _Packer) -> Config:
    packed = dict(task)
    if isinstance(workdir := task.get("workdir"), str):
        packed["workdir"] = {"upload": packer.pack(workdir, is_workdir=True).sha256}
    if mounts := task.get("file_mounts"):
        packed["file_mounts"] = {path: _pack_mount(mount, packer) for path, mount in mounts.items()}
    return packed


def _pack_mount(mount: Any, packer: _Packer) -> Any:
    if isinstance(mount, dict) and "source" in mount:
        source = mount["source"]
        if isinstance(source, list):
            return {**mount, "source": [_packed_path(one, packer, is_named=True) for one in source]}
        return {**mount, "source": _packed_path(source, packer)}
    return _packed_path(mount, packer)


def _packed_path(source: Any, packer: _Packer, *, is_named: bool = False) -> Any:
    if not _is_local(source):
        return source
    archive = packer.pack(source, is_named=is_named)
    return {"upload": archive.sha256, "is_file": archive.is_file}


def _is_local(source: Any) -> bool:
    return isinstance(source, str) and "://" not in source


class _CountingReader:
    """A readable file that reports the size of each block."""

    def __init__(self, raw: IO[bytes], count: Callable[[int], object]) -> None:
        self._raw, self._count = raw, count

    def read(self, size: int = -1) -> bytes:
        block = self._raw.read(size)
        self._count(len(block))
        return block


class _HashingWriter:
    """Hashes and counts the bytes that are written to a file."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.digest = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size_bytes += len(data)
        return self._raw.write(data)

    def flush(self) -> None:
        self._raw.flush()


@contextlib.contextmanager
def _translate_os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _upload_error(error, str(path)) from error


def _upload_error(error: OSError, path: str) -> UploadError:
    if error.errno == errno.ENOSPC:
        return UploadError(
            f"no space left in {tempfile.gettempdir()} to pack {path}", fix="set TMPDIR to a larger folder"
        )
    # Without strerror, the file shrank while it was read.
    what = error.strerror or "it changed while it was read"
    path_text = error.filename if isinstance(error.filename, str) else path
    return UploadError(
        f"cannot read {path_text}: {what}", fix="nothing was sent; make it readable, or leave it out with .skyignore"
    )
