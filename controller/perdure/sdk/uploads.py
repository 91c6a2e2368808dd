"""Packs what a task takes from this machine, and sends what the controller does not have yet.

A directory or file becomes a tar.gz named by its SHA-256: the same files give the same digest (sorted, no owners, no
time of packing), so a second launch of an unchanged tree sends nothing. Everything is packed before anything is sent.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from perdure.sdk import filelist
from perdure.sdk.client import Client
from perdure.sdk.endpoint import ClientError

Config = dict[str, Any]
BIG_BYTES = 500_000_000
_COMPRESSION = 3  # measured on source trees: within 8% of level 6's size at a third of its time


class UploadError(ClientError):
    """Something of the task's files can not be read or sent."""


@dataclass(frozen=True)
class Archive:
    """A packed file or directory. `path` is a temporary file; `files` counts what is in it, links included."""

    source: Path
    path: Path
    sha256: str
    size_bytes: int
    is_file: bool
    files: int


@dataclass(frozen=True)
class Packed:
    """Task configurations as the API wants them, and the archives that they name."""

    tasks: list[Config]
    archives: dict[str, Archive]

    @property
    def warnings(self) -> list[str]:
        """A line about each archive that is so big that something is probably sent by mistake."""
        return [
            f"{archive.source} is {size_text(archive.size_bytes)} in {archive.files} files; "
            f"what is not needed can be left out with a {filelist.IGNORE_FILE} file"
            for archive in self.archives.values()
            if archive.size_bytes > BIG_BYTES
        ]


@contextlib.contextmanager
def pack_tasks(tasks: Sequence[Config]) -> Iterator[Packed]:
    """Pack every local path of `tasks`; the archives live as long as the block. Raises `UploadError`.

    Local are: a `workdir` that is a string, a file mount's source without `://`, and such a source of a storage.
    Relative paths are relative to the current directory.
    """
    with tempfile.TemporaryDirectory(prefix="perdure-upload-") as folder:
        packer = _Packer(Path(folder))
        yield Packed([_packed_task(task, packer) for task in tasks], packer.by_digest)


Sending = Callable[[Archive], contextlib.AbstractContextManager[Callable[[int], object]]]
"""Entered while an archive is sent; what it gives is called with the bytes of each piece."""


@contextlib.contextmanager
def unseen(_: Archive) -> Iterator[Callable[[int], object]]:
    """A `Sending` that nobody watches."""
    yield lambda _bytes: None


def send(
    client: Client,
    archives: Mapping[str, Archive],
    *,
    say: Callable[[str], None] = lambda _: None,
    sending: Sending = unseen,
) -> None:
    """Send the archives that the controller lacks. `say` gets a line about each before it is sent."""
    for archive in archives.values():
        if client.has_upload(archive.sha256):
            continue
        plural = "" if archive.files == 1 else "s"
        say(f"Uploading {archive.source} ({archive.files} file{plural}, {size_text(archive.size_bytes)})")
        with open(archive.path, "rb") as data, sending(archive) as count:
            client.put_upload(archive.sha256, cast("IO[bytes]", _Counted(data, count)), archive.size_bytes)


def pack(source: Path, target: Path, *, is_workdir: bool, is_named: bool = False) -> Archive:
    """Pack `source` into the tar.gz `target`: a directory's content, or one file under its own name.

    `is_named`: a directory too is packed under its own name, so that several can lie side by side.
    """
    with _errors_named(source):
        is_file = not stat.S_ISDIR(source.stat().st_mode)
        if is_file:
            root, names = source.parent, [source.name]
        else:
            root, names = source, filelist.of_directory(source, is_workdir=is_workdir)
            if is_named:
                root, names = source.parent, [f"{source.name}/{name}" for name in names]
    with open(target, "wb") as raw:
        hashing = _HashingWriter(raw)
        with (
            gzip.GzipFile(filename="", mode="wb", compresslevel=_COMPRESSION, fileobj=hashing, mtime=0) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            files = sum(_add(archive, root, name, follow=is_file) for name in names)
    return Archive(source, target, hashing.digest.hexdigest(), hashing.size_bytes, is_file, files)


def size_text(size_bytes: float) -> str:
    """A size for people: `312 B`, `4.2 MB`."""
    for unit in ("B", "KB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "B" or size_bytes >= 100 else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


class _Packer:
    """Packs each source once, however many tasks mount it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._by_source: dict[tuple[str, bool, bool], Archive] = {}
        self.by_digest: dict[str, Archive] = {}

    def pack(self, source: str, *, is_workdir: bool = False, is_named: bool = False) -> Archive:
        path = Path(os.path.abspath(os.path.expanduser(source)))
        key = (str(path), is_workdir, is_named)
        if key not in self._by_source:
            target = self._folder / f"{len(self._by_source)}.tar.gz"
            archive = self._by_source[key] = pack(path, target, is_workdir=is_workdir, is_named=is_named)
            self.by_digest.setdefault(archive.sha256, archive)
        return self._by_source[key]


def _packed_task(task: Config, packer: _Packer) -> Config:
    packed = dict(task)
    if isinstance(workdir := task.get("workdir"), str):
        packed["workdir"] = {"upload": packer.pack(workdir, is_workdir=True).sha256}
    if mounts := task.get("file_mounts"):
        packed["file_mounts"] = {path: _packed_mount(mount, packer) for path, mount in mounts.items()}
    return packed


def _packed_mount(mount: Any, packer: _Packer) -> Any:
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


class _Counted:
    """A file to read from, which tells how much of it was read."""

    def __init__(self, raw: IO[bytes], count: Callable[[int], object]) -> None:
        self._raw, self._count = raw, count

    def read(self, size: int = -1) -> bytes:
        block = self._raw.read(size)
        self._count(len(block))
        return block


class _HashingWriter:
    """Counts and digests what passes through to a file."""

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


def _add(archive: tarfile.TarFile, root: Path, name: str, *, follow: bool) -> int:
    """Add one path; sockets, pipes and devices are passed over. Returns how many were added.

    `follow`: a symbolic link stands for what it points to (one file that the user names), else it stays a link.
    """
    path = root / name
    with _errors_named(path):
        status = path.stat() if follow else path.lstat()
        member = tarfile.TarInfo(name)
        member.mode = stat.S_IMODE(status.st_mode)
        member.mtime = int(status.st_mtime)
        if stat.S_ISREG(status.st_mode):
            with open(path, "rb") as content:
                member.size = os.fstat(content.fileno()).st_size
                archive.addfile(member, content)
        elif stat.S_ISLNK(status.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
            archive.addfile(member)
        elif stat.S_ISDIR(status.st_mode):
            member.type = tarfile.DIRTYPE
            archive.addfile(member)
            return 0
        else:
            return 0
    return 1


@contextlib.contextmanager
def _errors_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise UploadError(
                f"no space left in {tempfile.gettempdir()} to pack {path}", fix="set TMPDIR to a larger folder"
            ) from error
        # tarfile's own "unexpected end of data" has no strerror: the file shrank while it was read.
        what = error.strerror or "it changed while it was read"
        shown = error.filename if isinstance(error.filename, str) else path
        raise UploadError(
            f"can not read {shown}: {what}", fix="nothing was sent; make it readable, or leave it out with .skyignore"
        ) from error
