"""The index of a transcript finds every line without reading those before it, while the transcript grows."""

from __future__ import annotations

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine

from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.logs import transcript, transcript_index
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.controller.store.logs.job_transcript import JobTranscript
from perdure.controller.store.logs.protocol import Chunk, LogStore
from perdure.controller.store.logs.sql_logs import SqlLogStore
from perdure.controller.store.logs.transcript import AttemptInfo, Transcript
from perdure.controller.store.logs.transcript_index import AttemptLine, TranscriptIndex, TranscriptIndexes

TEXTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.text("ab\n", max_size=12).map(str.encode)))


def info(generation: int, nodes: int, *, has_ended: bool = True) -> AttemptInfo:
    reason = "PREEMPTED" if has_ended else None
    return AttemptInfo((1, 0, generation), nodes, "2026-01-01T00:00:00Z", "local/x", "", has_ended, reason)


class KnownTranscript(JobTranscript):
    """One whose attempts a test says."""

    def __init__(self, logs: LogStore, attempts: list[AttemptInfo]) -> None:
        super().__init__(None, logs, 1)  # type: ignore[arg-type]  # no query is made
        self._attempts = attempts

    def refresh(self) -> bool:
        return False

    def copy(self) -> Any:
        other = KnownTranscript(self._logs, self._attempts)
        other._transcript = self._transcript.copy(lambda: other._attempts)
        return other


class FailingLogStore(FileLogStore):
    """Raises `error` instead of the read that comes after `reads_left` others. `bytes_read`: of ranges."""

    reads_left, bytes_read = 10**9, 0
    error: type[OSError] = OSError

    def read_chunk(self, key: AttemptKey, chunk: Chunk) -> bytes:
        self.reads_left -= 1
        if self.reads_left == -1:
            raise self.error("not now")
        return super().read_chunk(key, chunk)

    def read_range(self, key: AttemptKey, rank: int, offset: int, length: int) -> bytes:
        self.bytes_read += length
        return super().read_range(key, rank, offset, length)


def whole_of(logs: LogStore, attempts: list[AttemptInfo]) -> bytes:
    return b"".join(Transcript(logs, lambda: attempts).read_new())


@given(TEXTS, st.integers(1, 40), st.integers(1, 12), st.data())
def test_view__equals_the_transcript(
    texts: list[tuple[int, int, bytes]], block: int, longest: int, data: st.DataObject
) -> None:
    """Attempts of one, two and one nodes; whatever is read when."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(transcript_index, "BLOCK_BYTES", block)
        patched.setattr(transcript, "MAX_RANK_LINE_BYTES", longest)
        logs = FileLogStore(Path(folder))
        attempts = [info(1, 1, has_ended=False)]
        index = TranscriptIndex(logs, KnownTranscript(logs, attempts))
        for nth, rank, text in sorted(texts, key=lambda one: one[0]):
            nodes = (1, 2, 1)[nth]
            while len(attempts) <= nth:
                attempts[-1] = info(len(attempts), (1, 2, 1)[len(attempts) - 1])
                attempts.append(info(len(attempts) + 1, (1, 2, 1)[len(attempts)], has_ended=False))
            key, rank = (1, 0, nth + 1), min(rank, nodes - 1)
            logs.append(key, rank, logs.size(key, rank), text)
            if data.draw(st.booleans()):
                index.read_step(data.draw(st.sampled_from([0.0, 1.0])))
        index.view()  # what an unfinished step has left
        read = index.read_step()
        assert read is not None
        view, rest = read
        whole = whole_of(logs, attempts)
        assert b"".join(view.pieces(0, view.size)) == whole
        lines = whole.split(b"\n")
        if lines[-1] == b"":
            lines.pop()
        assert view.num_lines == len(lines)
        first, count = data.draw(st.integers(0, len(lines) + 1)), data.draw(st.integers(1, 6))
        assert view.lines(first, count) == lines[first : first + count]
        start, end = sorted(data.draw(st.integers(0, len(whole))) for _ in range(2))
        assert b"".join(view.pieces(start, end)) == whole[start:end]
        assert whole[view.start_of_tail(count) :] == b"".join(whole.splitlines(keepends=True)[-count:])
        for mark in view.attempts:
            assert lines[mark.line].startswith(b"--- attempt %d on" % mark.generation)
        assert [mark.generation for mark in view.attempts] == list(range(1, len(attempts) + 1))
        logs.append(attempts[-1].key, 0, logs.size(attempts[-1].key, 0), b"new\n")
        assert whole + b"".join(rest.read_new()) == whole_of(logs, attempts)


def test_lines__that_are_long_are_cut(tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path)
    attempts = [info(1, 1, has_ended=False)]
    logs.append((1, 0, 1), 0, 0, b"x" * 1_000_000 + b"\nshort")
    view = TranscriptIndex(logs, KnownTranscript(logs, attempts)).view()
    assert view.num_lines == 3
    assert view.lines(1, 5) == [b"x" * 16_384 + b" [... and 983616 more bytes]", b"short"]
    assert view.attempts == [AttemptLine(0, 1, 0)]


def test_lines__that_are_long_are_not_read_to_their_end(tmp_path: Path) -> None:
    logs = FailingLogStore(tmp_path)
    for _ in range(40):
        logs.append((1, 0, 1), 0, logs.size((1, 0, 1), 0), b"x" * 2**20)
    attempts = [info(1, 1, has_ended=False)]
    index = TranscriptIndex(logs, KnownTranscript(logs, attempts))
    view = index.view()
    logs.bytes_read = 0
    assert view.lines(1, 2) == [b"x" * 16_384 + b" [... and %d more bytes]" % (40 * 2**20 - 16_384)]
    logs.append((1, 0, 1), 0, 40 * 2**20, b"yz\nshort")
    view = index.view()
    assert view.lines(1, 2) == [b"x" * 16_384 + b" [... and %d more bytes]" % (40 * 2**20 - 16_382), b"short"]
    assert 0 < logs.bytes_read < 8 * 2**20


def test_view__does_not_change_while_the_log_grows(tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path)
    attempts = [info(1, 1, has_ended=False)]
    index = TranscriptIndex(logs, KnownTranscript(logs, attempts))
    logs.append((1, 0, 1), 0, 0, b"one\n")
    before = index.view()
    logs.append((1, 0, 1), 0, 4, b"two\n")
    after = index.view()
    assert (before.num_lines, after.num_lines) == (2, 3)
    assert before.lines(0, 9) == after.lines(0, 2)


def add_lines(logs: LogStore, count: int) -> None:
    """Append lines of 1000 bytes to the log of attempt 1, in chunks of 64 KiB and more."""
    for _ in range(0, count, 100):
        logs.append((1, 0, 1), 0, logs.size((1, 0, 1), 0), (b"x" * 999 + b"\n") * 100)


@pytest.mark.parametrize("has_read_before", [False, True])
def test_view__after_a_failed_read_has_no_hole(tmp_path: Path, has_read_before: bool) -> None:
    logs = FailingLogStore(tmp_path)
    attempts = [info(1, 1, has_ended=False)]
    index = TranscriptIndex(logs, KnownTranscript(logs, attempts))
    if has_read_before:
        add_lines(logs, 500)
        index.view()
    add_lines(logs, 1000)
    logs.reads_left = 2
    with pytest.raises(OSError, match="not now"):
        index.view()
    view = index.view()
    assert view.num_lines == (1501 if has_read_before else 1001)
    assert b"".join(view.pieces(0, view.size)) == whole_of(logs, attempts)
    assert [mark.line for mark in view.attempts] == [0]


def test_read_step__ends_when_its_time_is_over_and_goes_on(tmp_path: Path) -> None:
    logs = FailingLogStore(tmp_path)
    attempts = [info(1, 1, has_ended=False)]
    index = TranscriptIndex(logs, KnownTranscript(logs, attempts))
    add_lines(logs, 2000)
    steps = 0
    times = itertools.count()
    while (read := index.read_step(2.0, lambda: float(next(times)))) is None:
        steps += 1
        assert index.is_reading
    assert steps >= 3
    assert not index.is_reading
    assert b"".join(read[0].pieces(0, read[0].size)) == whole_of(logs, attempts)


def test_view__of_a_log_in_the_database_reads_parts_of_rows(database: Engine) -> None:
    logs = SqlLogStore(database)
    attempts = [info(1, 2, has_ended=False)]
    index = TranscriptIndex(logs, KnownTranscript(logs, attempts))
    logs.append((1, 0, 1), 0, 0, b"one\ntw")
    index.view()
    logs.append((1, 0, 1), 1, 0, b"uno\n")
    logs.append((1, 0, 1), 0, 6, b"o\nthree\n")
    view = index.view()
    assert view.lines(1, 9) == [b"(rank 0) one", b"(rank 1) uno", b"(rank 0) two", b"(rank 0) three"]
    assert b"".join(view.pieces(0, view.size)) == whole_of(logs, attempts)
    while logs.remove(1):
        pass
    with pytest.raises(FileNotFoundError):
        view.lines(1, 9)


def test_indexes__drop_those_that_were_used_least_recently(tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path)

    def new_index() -> TranscriptIndex:
        index = TranscriptIndex(logs, KnownTranscript(logs, [info(1, 1)]))
        index.view()
        return index

    def kept(indexes: TranscriptIndexes) -> list[int]:
        return [key for key in (1, 2, 3) if indexes.get(key) is not None]

    few = TranscriptIndexes(max_indexes=2)
    for key in (1, 2, 1, 3):
        few.keep(key, few.get(key) or new_index())
    assert kept(few) == [1, 3]
    few.forget(3)
    assert kept(few) == [1]
    small, large = TranscriptIndexes(max_bytes=100), new_index()
    large.memory_bytes = 101
    small.keep(1, large)
    small.keep(2, new_index())
    assert kept(small) == [2]


def test_indexes__keep_no_empty_ones(tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path)
    indexes, full = TranscriptIndexes(max_indexes=1), TranscriptIndex(logs, KnownTranscript(logs, [info(1, 1)]))
    full.view()
    indexes.keep(1, full)
    empty = TranscriptIndex(logs, KnownTranscript(logs, []))
    empty.view()
    indexes.keep(2, empty)
    assert indexes.get(1) is full
    assert indexes.get(2) is None
