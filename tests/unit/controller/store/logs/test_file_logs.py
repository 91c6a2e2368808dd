"""Logs in files of one daemon."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.controller.store.logs import file_logs
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.controller.store.logs.transcript import AttemptInfo, Transcript
from support.helpers.timing import wait_until

KEY = (1, 0, 1)


def info(generation: int = 1, *, nodes: int = 1, has_ended: bool = True, reason: str | None = None) -> AttemptInfo:
    return AttemptInfo((1, 0, generation), nodes, "2026-01-01T00:00:00Z", "local/x", "", has_ended, reason)


@given(st.binary(max_size=200), st.lists(st.tuples(st.integers(0, 220), st.integers(1, 60)), max_size=40))
def test_append__stores_any_overlapping_sends_once(tmp_path_factory: object, whole: bytes, sends: object) -> None:
    logs = FileLogStore(tmp_path_factory.mktemp("logs"))  # type: ignore[attr-defined]
    for start, length in sends:  # type: ignore[attr-defined]
        logs.append(KEY, 0, min(start, len(whole)), whole[start : start + length])
    stored = logs.size(KEY, 0)
    assert logs.append(KEY, 0, stored, whole[stored:]) == len(whole)
    log = b"".join(logs.read_chunk(KEY, chunk) for chunk in logs.reader(KEY).read_new())
    assert log == whole


def test_append__rejects_bytes_beyond_a_gap(tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path)
    assert logs.append(KEY, 0, 0, b"abc") == 3
    assert logs.append(KEY, 0, 10, b"later") == 3


def test_append__full_disk_stores_nothing_and_recovers(tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path)
    reader = logs.reader(KEY)
    assert logs.append(KEY, 0, 0, b"a" * 600) == 600
    with file_size_limit(1000), pytest.raises(OSError, match="too large"):
        logs.append(KEY, 0, 600, b"b" * 600)
    assert logs.size(KEY, 0) == 600
    assert logs.append(KEY, 0, 600, b"b" * 600) == 1200
    assert b"".join(logs.read_chunk(KEY, chunk) for chunk in reader.read_new()) == b"a" * 600 + b"b" * 600


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Behaves like a disk that is nearly full: a write that exceeds the limit is short, and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def crashed(home: Path) -> Path:
    """A home whose daemon died between the two writes of an append, and in the middle of the second one. Its index."""
    logs = FileLogStore(home)
    logs.append(KEY, 0, 0, b"first\n")
    with (logs.folder(KEY) / "0.log").open("ab") as raw:
        raw.write(b"second\n")
    index = logs.folder(KEY) / "index"
    index.write_bytes(b"0 6\n0 ")
    return index


def shown(logs: FileLogStore) -> bytes:
    return b"".join(logs.read_chunk(KEY, chunk) for chunk in logs.reader(KEY).read_new())


def test_reader__completes_the_index_that_a_crash_left(tmp_path: Path) -> None:
    index = crashed(tmp_path)
    restarted = FileLogStore(tmp_path)
    assert b"".join(Transcript(restarted, lambda: [info()]).read_new()).endswith(b"first\nsecond\n")
    assert index.read_bytes() == b"0 6\n0 7\n"
    assert shown(restarted) == b"first\nsecond\n"
    assert index.read_bytes() == b"0 6\n0 7\n"


def test_append__completes_the_index_before_it_continues(tmp_path: Path) -> None:
    index = crashed(tmp_path)
    restarted = FileLogStore(tmp_path)
    assert restarted.append(KEY, 1, 0, b"of another rank\n") == 16
    assert restarted.append(KEY, 0, 13, b"third\n") == 19
    assert index.read_bytes() == b"0 6\n0 7\n1 16\n", "the last chunk is not listed yet"
    assert shown(restarted) == b"first\nsecond\nof another rank\nthird\n"


def test_reader__shows_what_is_listed_while_the_disk_is_full(tmp_path: Path) -> None:
    index = crashed(tmp_path)
    restarted = FileLogStore(tmp_path)
    with file_size_limit(len(b"0 6\n")):
        assert shown(restarted) == b"first\n"
    assert shown(restarted) == b"first\nsecond\n"
    assert index.read_bytes() == b"0 6\n0 7\n"


def test_remove__lets_an_id_be_used_by_another_log(tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path)
    logs.append(KEY, 0, 0, b"first\n")
    assert logs.remove(KEY[0])
    crashed(tmp_path)
    assert shown(logs) == b"first\nsecond\n"


def test_prepare__makes_the_files_before_the_first_line(tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "2").write_text("in the way of the next one")
    logs.prepare([((2, 0, 1), 0), (KEY, 0), (KEY, 1)])
    files = [logs.folder(KEY) / name for name in ("0.log", "1.log", "index")]
    wait_until(lambda: all(file.exists() for file in files), "the files of both nodes")
    assert [file.stat().st_size for file in files] == [0, 0, 0]
    assert logs.append(KEY, 1, 0, b"first\n") == 6
    assert shown(logs) == b"first\n"
    with pytest.raises(OSError, match="2"):
        logs.append((2, 0, 1), 0, 0, b"first\n")


def test_prepare__changes_nothing_that_a_crash_left(tmp_path: Path) -> None:
    index = crashed(tmp_path)
    restarted = FileLogStore(tmp_path)
    restarted.prepare([(KEY, 0), (KEY, 1)])
    wait_until((restarted.folder(KEY) / "1.log").exists, "the file of the second node")
    assert shown(restarted) == b"first\nsecond\n"
    assert index.read_bytes() == b"0 6\n0 7\n"


def test_single_bytes__are_one_chunk_in_the_index_and_for_readers(tmp_path: Path) -> None:
    """A node may send its log in frames of one byte."""
    logs = FileLogStore(tmp_path)
    follower = logs.reader(KEY)
    followed = b""
    for number in range(300):
        logs.append(KEY, 0, number, b"%d" % (number % 10))
        followed += b"".join(logs.read_chunk(KEY, chunk) for chunk in follower.read_new())
    logs.append(KEY, 1, 0, b"of another rank")
    whole = b"0123456789" * 30
    assert followed == whole
    assert (logs.folder(KEY) / "index").read_bytes() == b"0 300\n"
    assert [chunk.length for chunk in logs.reader(KEY).read_new()] == [300, 15]
    assert [chunk.length for chunk in follower.read_new()] == [15]
    assert shown(FileLogStore(tmp_path)) == whole + b"of another rank", "also after a crash"


def test_old_index__of_single_bytes_is_read_in_few_chunks(tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path)
    logs.append(KEY, 0, 0, b"x" * 300_000)
    (logs.folder(KEY) / "index").write_bytes(b"0 1\n" * 300_000)
    assert [chunk.length for chunk in FileLogStore(tmp_path).reader(KEY).read_new()] == [262_144, 37_856]


def test_long_index__grows_no_more_with_each_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of a job may send single bytes by turns. Their order is exact until the index is long."""
    monkeypatch.setattr(file_logs, "_LONG_INDEX_BYTES", 40)
    monkeypatch.setattr(file_logs, "_COARSE_BYTES", 100)
    logs = FileLogStore(tmp_path)
    follower = logs.reader(KEY)
    for number in range(500):
        for rank in range(2):
            logs.append(KEY, rank, number, b"%d" % rank)
    assert len((logs.folder(KEY) / "index").read_bytes()) < 120
    first = shown(logs)
    assert first.startswith(b"0101010101")
    assert (first.count(b"0"), first.count(b"1")) == (500, 500)
    assert len(b"".join(logs.read_chunk(KEY, chunk) for chunk in follower.read_new())) == 1000
    assert len(shown(FileLogStore(tmp_path))) == 1000


def test_closed_files__leave_nothing_unlisted(tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path)
    logs._max_open_nodes = 1
    logs.append(KEY, 0, 0, b"first")
    logs.append((2, 0, 1), 0, 0, b"other job")
    assert (logs.folder(KEY) / "index").read_bytes() == b"0 5\n"
    assert shown(logs) == b"first"
    assert list(logs._unlisted) == [(2, 0, 1)]
    assert logs.remove(2)
    assert logs._unlisted == {}


def test_read_chunk__after_a_power_failure_returns_what_is_left(tmp_path: Path) -> None:
    """The index lists more than the log has: a file system may write the files in any order."""
    logs = FileLogStore(tmp_path)
    logs.append(KEY, 0, 0, b"x" * 100_000)
    logs.append(KEY, 1, 0, b"other")
    (chunk, _) = logs.reader(KEY).read_new()
    assert chunk.length == 100_000
    os.truncate(logs.folder(KEY) / "0.log", 99_000)
    assert len(logs.read_chunk(KEY, chunk)) == 99_000
    with pytest.raises(FileNotFoundError):
        logs.read_range(KEY, 0, 98_000, 2_000)
