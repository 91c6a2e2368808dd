"""Log bytes: none lost, none twice, and the same transcript at every reading."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.controller.nodelogs import NodeLogs
from perdure.controller.transcript import AttemptInfo, Transcript

KEY = (1, 0, 1)


def info(generation: int = 1, *, nodes: int = 1, is_over: bool = True, reason: str | None = None) -> AttemptInfo:
    return AttemptInfo((1, 0, generation), nodes, "2026-01-01T00:00:00Z", "local/x", "", is_over, reason)


@given(st.binary(max_size=200), st.lists(st.tuples(st.integers(0, 220), st.integers(1, 60)), max_size=40))
def test_whatever_is_sent_again_the_file_is_the_nodes_log(
    tmp_path_factory: object, whole: bytes, sends: object
) -> None:
    logs = NodeLogs(tmp_path_factory.mktemp("logs"))  # type: ignore[attr-defined]
    for start, length in sends:  # type: ignore[attr-defined]
        logs.append(KEY, 0, min(start, len(whole)), whole[start : start + length])
    kept = logs.size(KEY, 0)
    assert logs.append(KEY, 0, kept, whole[kept:]) == len(whole)
    told = b"".join(logs.read(KEY, chunk) for chunk in logs.reader(KEY).new())
    assert told == whole


def test_bytes_beyond_a_gap_are_asked_for_again(tmp_path: Path) -> None:
    logs = NodeLogs(tmp_path)
    assert logs.append(KEY, 0, 0, b"abc") == 3
    assert logs.append(KEY, 0, 10, b"later") == 3


def test_what_a_full_disk_cut_short_is_not_kept_and_is_taken_when_there_is_room(tmp_path: Path) -> None:
    logs, reader = NodeLogs(tmp_path), NodeLogs(tmp_path).reader(KEY)
    assert logs.append(KEY, 0, 0, b"a" * 600) == 600
    with files_of_at_most(1000), pytest.raises(OSError, match="too large"):
        logs.append(KEY, 0, 600, b"b" * 600)
    assert logs.size(KEY, 0) == 600
    assert logs.append(KEY, 0, 600, b"b" * 600) == 1200
    assert b"".join(logs.read(KEY, chunk) for chunk in reader.new()) == b"a" * 600 + b"b" * 600


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As on a disk with little room: a write that reaches beyond is cut short first, and fails then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_crash_between_the_two_writes_is_repaired(tmp_path: Path) -> None:
    logs = NodeLogs(tmp_path)
    logs.append(KEY, 0, 0, b"first\n")
    with (logs.folder(KEY) / "0.log").open("ab") as raw:
        raw.write(b"second\n")
    with (logs.folder(KEY) / "index").open("ab") as index:
        index.write(b"0 ")
    again = NodeLogs(tmp_path)
    again.repair(KEY)
    assert b"".join(Transcript(again, lambda: [info()]).more()).endswith(b"first\nsecond\n")
    assert os.path.getsize(logs.folder(KEY) / "index") == len("0 6\n0 7\n")


def test_attempts_come_in_order_each_marked_and_only_when_the_one_before_is_over(tmp_path: Path) -> None:
    logs = NodeLogs(tmp_path)
    attempts = [info(1, is_over=False), info(2, is_over=False)]
    transcript = Transcript(logs, lambda: attempts)
    logs.append((1, 0, 1), 0, 0, b"one, no newline")
    logs.append((1, 0, 2), 0, 0, b"two\n")
    assert b"two" not in b"".join(transcript.more())
    attempts[0] = info(1, reason="PREEMPTED")
    rest = b"".join(transcript.more()).decode()
    assert rest.startswith("\n--- attempt 1 ended: PREEMPTED ---\n--- attempt 2 ")
    assert rest.endswith("two\n")


def test_what_is_printed_is_read_without_asking_for_attempts_and_comes_once(tmp_path: Path) -> None:
    logs = NodeLogs(tmp_path)
    attempts, asked = [info(1, nodes=2, is_over=False)], []
    transcript = Transcript(logs, lambda: asked.append(1) or attempts)
    assert list(transcript.printed()) == []
    logs.append((1, 0, 1), 0, 0, b"one\nhalf")
    pieces = [*transcript.more()]
    logs.append((1, 0, 1), 0, 8, b" a line\n")
    pieces += transcript.printed()
    assert len(asked) == 1
    attempts[:] = [info(1, nodes=2), info(2, is_over=False)]
    pieces += [*transcript.more(), *transcript.printed()]
    assert b"".join(pieces) == b"".join(Transcript(logs, lambda: attempts).more())
    assert b"".join(pieces).count(b"(rank 0) half a line\n") == 1


def test_ranks_are_told_apart_line_by_line(tmp_path: Path) -> None:
    logs = NodeLogs(tmp_path)
    logs.append(KEY, 0, 0, b"a1\na2 is ")
    logs.append(KEY, 1, 0, b"b1\n")
    logs.append(KEY, 0, 9, b"long\nrest")
    text = b"".join(Transcript(logs, lambda: [info(nodes=2)]).more()).decode()
    assert text.splitlines()[1:] == ["(rank 0) a1", "(rank 1) b1", "(rank 0) a2 is long", "(rank 0) rest"]


def test_reading_in_pieces_gives_the_same_bytes_as_reading_at_once(tmp_path: Path) -> None:
    logs = NodeLogs(tmp_path)
    attempts = [info(1, nodes=2, is_over=False)]
    slow = Transcript(logs, lambda: attempts)
    pieces = b""
    for n in range(20):
        logs.append(KEY, n % 2, (n // 2) * 4, b"x%02d\n" % n)
        pieces += b"".join(slow.more())
    attempts[0] = info(1, nodes=2, reason="COMPLETED")
    pieces += b"".join(slow.more())
    assert pieces == b"".join(Transcript(logs, lambda: attempts).more())
