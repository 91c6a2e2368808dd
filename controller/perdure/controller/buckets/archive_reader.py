"""The child process that reads an uploaded archive: `python -m perdure.controller.buckets.archive_reader ARCHIVE`.

A user uploads what they like, and a small archive can claim or unpack to any size. So this process has a limit on its
memory and on its CPU time, and is the only one that parses the archive. It writes the archive's files to its standard
output: for each, a line of JSON with `name` and `size`, and its bytes. The last line has `end`, or `error` with the
reason; without one, the process has met its limits. `buckets.archive` reads this.
"""

from __future__ import annotations

import gzip
import json
import resource
import sys
import tarfile
from typing import IO, Any

MAX_MEMORY_BYTES = 512 * 2**20
MAX_CPU_S = 4 * 3600
MAX_HEADER_BYTES = 2**20  # of one file: its names, links and attributes
_COPY_BYTES = 2**18
_GZIP_MAGIC = b"\x1f\x8b"


class HeaderTooLong(Exception):
    """A header of the archive claims more than `MAX_HEADER_BYTES`."""


class _Bounded:
    """The uncompressed archive, as far as `tarfile` needs a file. It reads each header at once, however long it is."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.seek, self.tell, self.seekable = raw.seek, raw.tell, raw.seekable
        self.read = self._read_bounded

    def _read_bounded(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_HEADER_BYTES:
            raise HeaderTooLong
        return self._raw.read(size)


def write_files(archive: str, out: IO[bytes]) -> None:
    """Write every file of the tar or tar.gz `archive` to `out`. Links become copies of their targets."""
    with open(archive, "rb") as file:
        is_compressed = file.read(2) == _GZIP_MAGIC
        file.seek(0)
        raw: Any = gzip.GzipFile(fileobj=file) if is_compressed else file
        with tarfile.open(fileobj=_Bounded(raw), mode="r:") as tar:  # type: ignore[call-overload]
            for member in tar:
                if not member.isdir():
                    _write_file(tar, member, out)
    _write_line(out, end=True)


def _write_file(tar: tarfile.TarFile, member: tarfile.TarInfo, out: IO[bytes]) -> None:
    try:
        body = tar.extractfile(member)
    except KeyError:
        body = None
    if body is None:
        raise LookupError(member.name)
    with body:
        size = body.seek(0, 2)
        body.seek(0)
        _write_line(out, name=member.name.removeprefix("./"), size=size)
        while data := body.read(_COPY_BYTES):
            out.write(data)


def _write_line(out: IO[bytes], **fields: object) -> None:
    out.write(json.dumps(fields).encode() + b"\n")


def main(archive: str) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = sys.stdout.buffer
    try:
        write_files(archive, out)
    except HeaderTooLong:
        _write_line(out, error=f"a file's header is longer than {MAX_HEADER_BYTES} bytes")
    except LookupError as error:
        _write_line(out, link=str(error.args[0]))
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        _write_line(out, error=str(error) or type(error).__name__)
    out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
