"""Bytes to a file and back, on every kind of disk."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.checkpoint.format.manifest import FileRecord
from perdure.checkpoint.state import direct_io, streams
from perdure.checkpoint.state.buffers import large_buffer


@given(st.lists(st.binary(max_size=300), max_size=5), st.data())
def test_stream__comes_back_or_is_damaged(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("stream") / "file"
    record = FileRecord("file", *streams.write_synced(str(path), map(memoryview, pieces)))
    assert bytes(streams.read_verified(str(path), record)) == b"".join(pieces)
    content = bytearray(path.read_bytes())
    if content:
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        with pytest.raises(streams.DamagedFile, match="differs"):
            streams.read_verified(str(path), record)


@pytest.fixture(params=["past the page cache", "through it"])
def a_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "through it":
        monkeypatch.setattr(direct_io, "enable", lambda descriptor: False)
    return str(request.param)


@pytest.mark.parametrize("extra", [0, 1, direct_io.ALIGNMENT])
@pytest.mark.parametrize("cut", [0, 4096, streams.BLOCK_BYTES + 3])
@pytest.mark.usefixtures("a_disk")
def test_stream__large_in_any_pieces(tmp_path: Path, extra: int, cut: int) -> None:
    size = 2 * streams.BLOCK_BYTES + extra
    content = large_buffer(size)
    content[:] = os.urandom(size)
    path = tmp_path / "file"
    written = streams.write_synced(str(path), [content[:cut], content[cut:]], size_hint=size)
    assert written[0] == size
    assert path.read_bytes() == content
    record = FileRecord("file", *written)
    assert streams.read_verified(str(path), record) == content  # from the page cache
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert streams.read_verified(str(path), record) == content  # from the disk
    with path.open("r+b") as file:
        file.seek(size - 1)
        file.write(bytes([content[-1] ^ 1]))
    with pytest.raises(streams.DamagedFile, match="differs"):
        streams.read_verified(str(path), record)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EFAULT])
def test_stream__falls_back_to_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def is_direct(descriptor: int) -> bool:
        return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)

    write, read = os.pwrite, os.preadv

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        if is_direct(descriptor):
            raise OSError(code, os.strerror(code))
        return write(descriptor, data, offset)

    def preadv(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        if is_direct(descriptor):
            raise OSError(code, os.strerror(code))
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(direct_io, "is_cached", lambda descriptor, size: False)
    content = os.urandom(3 * streams.BLOCK_BYTES + 1)
    path = str(tmp_path / "file")
    record = FileRecord("file", *streams.write_synced(path, [memoryview(content)], size_hint=len(content)))
    assert (tmp_path / "file").read_bytes() == content
    assert streams.read_verified(path, record) == content


def test_stream__failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OSError, match="Input/output"):
        streams.write_synced(str(tmp_path / "file"), [memoryview(bytes(2**26))], size_hint=2**26)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("hint", [0, 3_000_000, 2_000_000, 5_000_000])
def test_stream__size_hint_does_not_change_the_file(tmp_path: Path, hint: int) -> None:
    content = os.urandom(3_000_000)
    path = tmp_path / "file"
    size, *_ = streams.write_synced(str(path), [memoryview(content)], size_hint=hint)
    assert (size, path.read_bytes()) == (len(content), content)


def test_stream__full_disk_is_reported_before_writing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    produced = []

    def pieces() -> Iterator[memoryview]:
        produced.append(1)
        yield memoryview(b"x")

    with pytest.raises(OSError, match=r"No space left|File too large"):
        streams.write_synced(str(path), pieces(), size_hint=2**62)
    assert not produced
    assert not path.exists()


def test_large_buffer__has_the_requested_size() -> None:
    assert [len(large_buffer(size)) for size in (0, 1, 5000)] == [0, 1, 5000]
