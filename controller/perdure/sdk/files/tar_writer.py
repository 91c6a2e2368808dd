"""Writes tar archives of many small files, or of huge sparse ones, at the speed of the disk.

The headers are byte for byte those of `tarfile` in its PAX format, which takes ten times as long for a small file. The
holes of a sparse file are left out (GNU's sparse format 1.0, which `tarfile` and GNU tar read).
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import tarfile
from collections.abc import Callable
from typing import IO

_BLOCK_BYTES = 512
_BUFFER_BYTES = 256 * 1024
_READ_BYTES = 256 * 1024
_HEADER = struct.Struct("100s8s8s8s12s12s8s1s100s6s2s32s32s8s8s155s12x")
_MAX_OCTAL = 8**11  # the first number that does not fit into a header's size or time
_MIN_SPARSE_BYTES = 1024 * 1024
_MAX_SEGMENTS = 10_000


class TarWriter:
    """A tar archive that is written to `out`. `on_read` receives the number of bytes of a file, or of a part of it."""

    def __init__(self, out: IO[bytes], on_read: Callable[[int], object] = lambda _: None) -> None:
        self._out, self._on_read = out, on_read
        self._buffer = bytearray()
        self._offset = 0

    def add(self, path: str, name: str, *, follow: bool = False) -> int:
        """Add one path as `name`, without its owner. Sockets, pipes and devices are skipped. Returns the files added.

        `follow`: pack the target of a symbolic link instead of the link. Raises OSError, without an errno if the file
        shrank while it was read.
        """
        status = os.stat(path) if follow else os.lstat(path)
        if stat.S_ISREG(status.st_mode):
            # It may have become a named pipe since.
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                self._add_file(file, name, status)
            finally:
                os.close(file)
        elif stat.S_ISLNK(status.st_mode):
            self._write(_header(name, status, tarfile.SYMTYPE, link=os.readlink(path)))
        elif stat.S_ISDIR(status.st_mode):
            self._write(_header(name, status, tarfile.DIRTYPE))
            return 0
        else:
            return 0
        return 1

    def close(self) -> None:
        """Write the end of the archive. `out` stays open."""
        self._write(bytes(2 * _BLOCK_BYTES))
        self._write(bytes(-self._offset % tarfile.RECORDSIZE))
        self._flush()

    def _add_file(self, file: int, name: str, status: os.stat_result) -> None:
        actual = os.fstat(file)
        segments = _segments(file, actual)
        if segments is None:
            self._write(_header(name, status, tarfile.REGTYPE, size=actual.st_size))
            self._copy(file, actual.st_size)
        else:
            self._write(_sparse_header(name, status, actual.st_size, segments))
            for offset, size in segments:
                os.lseek(file, offset, os.SEEK_SET)
                self._copy(file, size)
        self._write(bytes(-self._offset % _BLOCK_BYTES))

    def _copy(self, file: int, size: int) -> None:
        while size:
            block = os.read(file, min(size, _READ_BYTES))
            if not block:
                raise OSError("unexpected end of data")
            self._write(block)
            self._on_read(len(block))
            size -= len(block)

    def _write(self, data: bytes) -> None:
        self._offset += len(data)
        self._buffer += data
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._out.write(self._buffer)
        self._buffer = bytearray()


def _header(name: str, status: os.stat_result, kind: bytes, *, size: int = 0, link: str = "") -> bytes:
    mode, mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    entry = f"{name}/" if kind == tarfile.DIRTYPE and not name.endswith("/") else name
    is_short = entry.isascii() and len(entry) <= 100 and link.isascii() and len(link) <= 100
    if not is_short or not 0 <= mtime < _MAX_OCTAL or size >= _MAX_OCTAL:
        return _tar_info(name, mode, mtime, kind, size, link).tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    numbers = (b"%07o" % mode, b"0000000", b"0000000", b"%011o" % size, b"%011o" % mtime)
    head = _HEADER.pack(
        entry.encode(), *numbers, b" " * 8, kind, link.encode(), b"ustar", b"00", b"", b"", b"", b"", b""
    )
    return b"%b%06o\0%b" % (head[:148], sum(head), head[155:])


def _tar_info(name: str, mode: int, mtime: int, kind: bytes, size: int, link: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.mtime, info.type, info.size, info.linkname = mode, mtime, kind, size, link
    return info


def _sparse_header(name: str, status: os.stat_result, real_size: int, segments: list[tuple[int, int]]) -> bytes:
    """The header of a sparse file, and the map of its segments, which is the first part of its content."""
    numbers = [len(segments), *(number for segment in segments for number in segment)]
    segment_map = "".join(f"{number}\n" for number in numbers).encode()
    segment_map += bytes(-len(segment_map) % _BLOCK_BYTES)
    info = _tar_info(
        "GNUSparseFile.0/file",  # never longer than a header can hold: the record of a long name would win over ours
        stat.S_IMODE(status.st_mode),
        int(status.st_mtime),
        tarfile.REGTYPE,
        len(segment_map) + sum(size for _, size in segments),
        "",
    )
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": name,
        "GNU.sparse.realsize": str(real_size),
    }
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape") + segment_map


def _segments(file: int, status: os.stat_result) -> list[tuple[int, int]] | None:
    """(offset, size) of the parts of a sparse file that have data; None for a file that is to be read as a whole."""
    size = status.st_size
    if size < _MIN_SPARSE_BYTES or status.st_blocks * 512 > size // 2:
        return None
    segments: list[tuple[int, int]] = []
    at = 0
    while at < size:
        try:
            at = os.lseek(file, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data up to the end
                break
            os.lseek(file, 0, os.SEEK_SET)
            return None  # this file system cannot tell
        end = min(os.lseek(file, at, os.SEEK_HOLE), size)
        segments.append((at, end - at))
        at = end
        if len(segments) > _MAX_SEGMENTS:
            break
    os.lseek(file, 0, os.SEEK_SET)
    data_bytes = sum(length for _, length in segments)
    # A larger size would need a PAX record, which readers take for that of the whole file.
    if len(segments) > _MAX_SEGMENTS or data_bytes > _MAX_OCTAL // 2:
        return None
    # An empty segment at the end says where the file ends, as GNU tar writes it.
    return [*segments, (size, 0)]
