"""Bytes to a file, on every kind of disk."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from perdure.checkpoint.format import block_digests, sampling
from perdure.checkpoint.load.block_compare import read_verified
from perdure.checkpoint.state import direct_io, streams
from perdure.checkpoint.state.buffers import large_buffer


@pytest.fixture(params=["past the page cache", "through it"])
def a_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "through it":
        monkeypatch.setattr(direct_io, "enable", lambda descriptor: False)
    return str(request.param)


@pytest.mark.parametrize("cuts", [(), (4096,), (7, streams.BLOCK_BYTES + 3), tuple(range(0, 200_000, 1000))])
@pytest.mark.usefixtures("a_disk")
def test_stream__digests_of_blocks_do_not_depend_on_the_pieces(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    size = 2 * streams.BLOCK_BYTES + 5
    content = large_buffer(size)
    content[:] = os.urandom(size)
    pieces = [content[begin:end] for begin, end in zip((0, *cuts), (*cuts, size), strict=True)]
    written = streams.write_synced(str(tmp_path / "file"), pieces, size_hint=size)
    assert (tmp_path / "file").read_bytes() == content
    record = written.record("file")
    blocks = [content[begin : begin + streams.BLOCK_BYTES] for begin in range(0, size, streams.BLOCK_BYTES)]
    assert record.block_digests == [block_digests.hash_block(record.algorithm, block) for block in blocks]
    assert record.digest == block_digests.combine(record.algorithm, record.block_digests)
    assert record.sample == sampling.hash_sample(str(tmp_path / "file"), record.algorithm, size)


@pytest.mark.parametrize("size", [0, 1, streams.BLOCK_BYTES])
def test_stream__file_of_one_block_has_the_digest_of_its_content(tmp_path: Path, size: int) -> None:
    record = streams.write_synced(str(tmp_path / "file"), [memoryview(bytes(size))], size_hint=size).record("file")
    assert (record.block_bytes, record.blocks) == (0, "")
    assert record.digest == block_digests.hash_block(record.algorithm, memoryview(bytes(size)))


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
    record = streams.write_synced(path, [memoryview(content)], size_hint=len(content)).record("file")
    assert (tmp_path / "file").read_bytes() == content
    assert read_verified(path, record) == content


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
