"""Bytes from a file: exactly those that were written, or an error that says where they differ."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.checkpoint.format import digest
from perdure.checkpoint.format.block_digests import BLOCK_BYTES
from perdure.checkpoint.format.manifest import FileRecord
from perdure.checkpoint.load import block_compare
from perdure.checkpoint.load.block_compare import BlockReader, DamagedFile, read_verified
from perdure.checkpoint.state import direct_io, streams


def saved(path: Path, content: bytes) -> FileRecord:
    return streams.write_synced(str(path), [memoryview(content)], size_hint=len(content)).record("file")


def with_one_digest(record: FileRecord, path: Path) -> FileRecord:
    """As manifests of format 1 have it: one digest of the whole content."""
    whole = digest.hash_file(str(path), record.algorithm)
    return replace(record, digest=whole, block_bytes=0, blocks="")


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 16]))


def drop_from_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@given(st.lists(st.binary(max_size=300), max_size=5), st.data())
def test_read__comes_back_or_is_damaged(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("stream") / "file"
    record = streams.write_synced(str(path), map(memoryview, pieces)).record("file")
    assert bytes(read_verified(str(path), record)) == b"".join(pieces)
    if record.size:
        flip(path, data.draw(st.integers(0, record.size - 1)))
        with pytest.raises(DamagedFile, match="differs"):
            read_verified(str(path), record)


@pytest.fixture(params=["past the page cache", "through it"])
def a_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "through it":
        monkeypatch.setattr(direct_io, "enable", lambda descriptor: False)
    return str(request.param)


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("extra", [0, 1, direct_io.ALIGNMENT])
@pytest.mark.usefixtures("a_disk")
def test_read__large_file_and_a_flipped_bit_in_every_region(tmp_path: Path, extra: int, is_old: bool) -> None:
    size = 2 * BLOCK_BYTES + extra
    content = os.urandom(size)
    path = tmp_path / "file"
    record = saved(path, content)
    if is_old:
        record = with_one_digest(record, path)
    assert read_verified(str(path), record) == content  # from the page cache
    drop_from_cache(path)
    assert read_verified(str(path), record) == content  # from the disk
    for at in (0, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES - 1, size - 1):
        flip(path, at)
        with pytest.raises(DamagedFile, match="file differs from what was saved") as caught:
            read_verified(str(path), record)
        begin = at // BLOCK_BYTES * BLOCK_BYTES
        where = f" between {begin} and {min(begin + BLOCK_BYTES, size)} "
        assert (where in str(caught.value)) is not is_old
        flip(path, at)
    assert read_verified(str(path), record) == content


@pytest.mark.usefixtures("a_disk")
def test_scan__gives_every_block_once_and_none_that_is_damaged(tmp_path: Path) -> None:
    content = os.urandom(3 * BLOCK_BYTES + 11)
    path = tmp_path / "file"
    record = saved(path, content)

    def scanned(numbers: range) -> dict[int, bytes]:
        blocks: dict[int, bytes] = {}
        reader = BlockReader(record)
        with reader.opened(str(path)):
            reader.scan(numbers, lambda begin, block: blocks.update({begin: bytes(block)}))
        return blocks

    assert b"".join(block for _, block in sorted(scanned(range(4)).items())) == content
    assert scanned(range(2, 3)) == {2 * BLOCK_BYTES: content[2 * BLOCK_BYTES : 3 * BLOCK_BYTES]}
    flip(path, BLOCK_BYTES + 1)
    assert len(scanned(range(2, 4))) == 2, "what is not read is not compared"
    given_out: list[int] = []
    reader = BlockReader(record)
    with reader.opened(str(path)), pytest.raises(DamagedFile, match="differs"):
        reader.scan(range(4), lambda begin, _: given_out.append(begin))
    assert BLOCK_BYTES not in given_out
    with pytest.raises(DamagedFile, match="differs"):
        block_compare.compare(str(path), record)


def truncate(path: Path, record: FileRecord) -> FileRecord:
    os.truncate(path, record.size - 1)
    return record


def swap_digests(_: Path, record: FileRecord) -> FileRecord:
    first, second, *rest = record.block_digests
    return replace(record, blocks="".join([second, first, *rest]))


def other_digest(_: Path, record: FileRecord) -> FileRecord:
    return replace(record, digest=record.block_digests[0])


@pytest.mark.parametrize(
    ("change", "text"),
    [(truncate, "bytes instead of"), (swap_digests, "contradict each other"), (other_digest, "contradict each other")],
)
def test_read__file_or_record_that_is_not_whole(
    tmp_path: Path, change: Callable[[Path, FileRecord], FileRecord], text: str
) -> None:
    path = tmp_path / "file"
    record = change(path, saved(path, os.urandom(2 * BLOCK_BYTES)))
    with pytest.raises(DamagedFile, match=text):
        read_verified(str(path), record)


def test_read__without_its_digest_the_size_alone_counts(tmp_path: Path) -> None:
    path = tmp_path / "file"
    record = saved(path, bytes(2 * BLOCK_BYTES + 9))
    flip(path, BLOCK_BYTES)
    assert bytes(read_verified(str(path), record, "size")) == path.read_bytes()
