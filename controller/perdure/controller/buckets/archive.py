"""The files of an uploaded archive, read in a process of its own (`archive_reader`), within limits."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from perdure.controller.buckets.stores import StorageError

#: What all files of an archive may amount to by default.
MAX_UNPACKED_BYTES = 100 * 2**30
_MAX_LINE_BYTES = 4 * 2**20  # a name of the longest header, escaped
_SPOOLED_BYTES = 2**20  # a smaller file is kept in memory, and not on the disk
_COPY_BYTES = 2**18
_SPARE_BYTES = 256 * 2**20  # of the disk, which stays free


def read_files(archive: Path, bucket: str, *, max_bytes: int = MAX_UNPACKED_BYTES) -> Iterator[tuple[str, IO[bytes]]]:
    """The name and the contents of every file of a tar or tar.gz, in order. Links are copies of their targets.

    Raises StorageError for an archive that is damaged, that amounts to more than `max_bytes`, or that would fill the
    disk of temporary files.
    """
    command = [sys.executable, "-P", "-m", "perdure.controller.buckets.archive_reader", str(archive)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        try:
            yield from _files(child.stdout, archive, bucket, max_bytes)
        finally:
            child.kill()


def _files(stream: IO[bytes], archive: Path, bucket: str, max_bytes: int) -> Iterator[tuple[str, IO[bytes]]]:
    total = 0
    while True:
        header = _header(stream, archive)
        if "end" in header:
            return
        if "link" in header:
            raise StorageError(
                f"{header['link']} links to a directory, or to a file that is not uploaded to bucket {bucket}",
                fix="replace the link with the files themselves",
            )
        if "error" in header:
            raise StorageError(
                f"the upload {archive.name} is not an archive: {header['error']}", fix="launch the job again"
            )
        total += header["size"]
        if total > max_bytes:
            raise StorageError(
                f"the files of upload {archive.name} amount to more than {max_bytes / 2**30:g} GiB",
                fix="upload fewer files, or raise uploads.max_unpacked_gib in the controller's config.yaml",
            )
        with tempfile.SpooledTemporaryFile(max_size=_SPOOLED_BYTES) as body:
            _copy(stream, body, header["size"], archive)
            body.seek(0)
            yield header["name"], body


def _header(stream: IO[bytes], archive: Path) -> Any:
    line = stream.readline(_MAX_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise StorageError(
            f"the upload {archive.name} cannot be unpacked within the limits of memory and time",
            fix="upload it in several archives, or fewer files",
        )
    return json.loads(line)


def _copy(stream: IO[bytes], body: IO[bytes], size: int, archive: Path) -> None:
    if size > _SPOOLED_BYTES and size + _SPARE_BYTES > (free := shutil.disk_usage(tempfile.gettempdir()).free):
        raise StorageError(
            f"a file of {size / 2**30:.1f} GiB in upload {archive.name} would fill the controller's disk, which has "
            f"{free / 2**30:.1f} GiB of free space",
            fix="free some space there, and launch the job again",
        )
    while size > 0:
        data = stream.read(min(size, _COPY_BYTES))
        if not data:
            raise StorageError(
                f"the upload {archive.name} is not an archive: it ends early", fix="launch the job again"
            )
        body.write(data)
        size -= len(data)


def _damaged(archive: Path, why: str) -> StorageError:
    return StorageError(f"the upload {archive.name} is not an archive: {why}", fix="launch the job again")
