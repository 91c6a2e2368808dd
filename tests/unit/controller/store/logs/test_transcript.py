"""The transcript of a job: the same bytes at every reading."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine

from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.logs import transcript as transcripts
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.controller.store.logs.sql_logs import SqlLogStore
from perdure.controller.store.logs.transcript import AttemptInfo, Transcript

KEY = (1, 0, 1)


def info(generation: int = 1, *, nodes: int = 1, has_ended: bool = True, reason: str | None = None) -> AttemptInfo:
    return AttemptInfo((1, 0, generation), nodes, "2026-01-01T00:00:00Z", "local/x", "", has_ended, reason)


def test_read_new__shows_attempts_in_order_under_headlines(tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path)
    attempts = [info(1, has_ended=False), info(2, has_ended=False)]
    transcript = Transcript(logs, lambda: attempts)
    logs.append((1, 0, 1), 0, 0, b"one, no newline")
    logs.append((1, 0, 2), 0, 0, b"two\n")
    assert b"two" not in b"".join(transcript.read_new())
    attempts[0] = info(1, reason="PREEMPTED")
    rest = b"".join(transcript.read_new()).decode()
    assert rest.startswith("\n--- attempt 1 ended: PREEMPTED ---\n--- attempt 2 ")
    assert rest.endswith("two\n")


def test_read_current__returns_new_output_once_without_listing_attempts(tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path)
    attempts, calls = [info(1, nodes=2, has_ended=False)], []
    transcript = Transcript(logs, lambda: calls.append(1) or attempts)
    assert list(transcript.read_current()) == []
    logs.append((1, 0, 1), 0, 0, b"one\nhalf")
    pieces = [*transcript.read_new()]
    logs.append((1, 0, 1), 0, 8, b" a line\n")
    pieces += transcript.read_current()
    assert len(calls) == 1
    attempts[:] = [info(1, nodes=2), info(2, has_ended=False)]
    pieces += [*transcript.read_new(), *transcript.read_current()]
    assert b"".join(pieces) == b"".join(Transcript(logs, lambda: attempts).read_new())
    assert b"".join(pieces).count(b"(rank 0) half a line\n") == 1


def test_read_new__prefixes_lines_with_ranks(tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path)
    logs.append(KEY, 0, 0, b"a1\na2 is ")
    logs.append(KEY, 1, 0, b"b1\n")
    logs.append(KEY, 0, 9, b"long\nrest")
    text = b"".join(Transcript(logs, lambda: [info(nodes=2)]).read_new()).decode()
    assert text.splitlines()[1:] == ["(rank 0) a1", "(rank 1) b1", "(rank 0) a2 is long", "(rank 0) rest"]


def test_read_new__pieces_equal_a_single_reading(tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path)
    attempts = [info(1, nodes=2, has_ended=False)]
    slow = Transcript(logs, lambda: attempts)
    pieces = b""
    for n in range(20):
        logs.append(KEY, n % 2, (n // 2) * 4, b"x%02d\n" % n)
        pieces += b"".join(slow.read_new())
    attempts[0] = info(1, nodes=2, reason="COMPLETED")
    pieces += b"".join(slow.read_new())
    assert pieces == b"".join(Transcript(logs, lambda: attempts).read_new())


def test_read_new__says_that_the_cloud_refused_an_attempt(tmp_path: Path) -> None:
    refused = AttemptInfo(
        (1, 0, 1), 1, "2026-01-01T00:00:00Z", "aws/x", "", True, None, refusal="InsufficientInstanceCapacity"
    )
    text = b"".join(Transcript(FileLogStore(tmp_path), lambda: [refused]).read_new()).decode()
    assert text.splitlines()[1:] == ["--- attempt 1 refused: InsufficientInstanceCapacity ---"]


def test_copy__continues_where_the_original_stands(tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path)
    attempts = [info(1, nodes=2, has_ended=False)]
    transcript = Transcript(logs, lambda: attempts)
    logs.append(KEY, 0, 0, b"one\nhalf")
    before = b"".join(transcript.read_new())
    copy = transcript.copy(lambda: attempts)
    logs.append(KEY, 0, 8, b" a line\n")
    logs.append(KEY, 1, 0, b"other\n")
    assert b"".join(copy.read_new()) == b"(rank 0) half a line\n(rank 1) other\n"
    assert before + b"".join(transcript.read_new()) == b"".join(Transcript(logs, lambda: attempts).read_new())


def test_new_parts__of_a_line_of_several_chunks_name_its_bytes(tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path)
    logs.append(KEY, 0, 0, b"x" * 70_000)
    logs.append(KEY, 0, 70_000, b"y" * 70_000 + b"\nnext")
    parts = list(Transcript(logs, lambda: [info(nodes=2, reason="DONE")]).new_parts())
    sources = [(part.chunk.offset, part.chunk.length) for part in parts if part.chunk is not None]
    assert sources == [(0, 140_001), (140_001, 4)]
    assert [len(part.data) for part in parts[1:3]] == [140_010, len("(rank 0) next\n")]


@given(st.lists(st.text("a\n", max_size=9).map(str.encode), max_size=9), st.integers(1, 6), st.data())
def test_read_new__ends_long_lines_of_ranks_wherever_chunks_end(
    texts: list[bytes], longest: int, data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(transcripts, "MAX_RANK_LINE_BYTES", longest)
        logs, attempts = FileLogStore(Path(folder)), [info(nodes=2, has_ended=False)]
        transcript, shown = Transcript(logs, lambda: attempts), b""
        for text in texts:
            logs.append(KEY, 0, logs.size(KEY, 0), text)
            if data.draw(st.booleans()):
                shown += b"".join(transcript.read_new())
        attempts[0] = info(nodes=2)
        shown += b"".join(transcript.read_new())
        expected = []
        for line in b"".join(texts).removesuffix(b"\n").split(b"\n") if any(texts) else []:
            expected += [line[at : at + longest] for at in range(0, len(line) or 1, longest)]
        assert shown.splitlines()[1:] == [b"(rank 0) " + line for line in expected]


def test_read_new__keeps_no_more_of_a_line_than_is_shown_of_it(tmp_path: Path) -> None:
    """A line of 40 MiB by one of two ranks, while the other one prints short lines."""

    class MeasuringLogStore(FileLogStore):
        most = 0

        def read_range(self, key: AttemptKey, rank: int, offset: int, length: int) -> bytes:
            self.most = max(self.most, length)
            return super().read_range(key, rank, offset, length)

    logs, attempts = MeasuringLogStore(tmp_path), [info(nodes=2)]
    for n in range(40):
        logs.append(KEY, 0, n * 2**20, b"x" * 2**20)
        logs.append(KEY, 1, n * 6, b"other\n")
    part_bytes, ranks = 0, [0, 0]
    for part in Transcript(logs, lambda: attempts).new_parts():
        part_bytes = max(part_bytes, len(part.data))
        if part.chunk is not None:
            ranks[part.chunk.rank] += part.chunk.length
            assert part.data.endswith(b"\n")
    assert ranks == [40 * 2**20, 240]
    assert max(part_bytes, logs.most) <= transcripts.MAX_RANK_LINE_BYTES + 2**20


def test_has_buffered__not_while_the_begin_of_a_line_is_only_in_the_database(database: Engine) -> None:
    """What is buffered is read on the event loop. The end of a long line needs its begin."""
    logs, attempts = SqlLogStore(database), [info(nodes=2, has_ended=False)]
    transcript = Transcript(logs, lambda: attempts)
    logs.append(KEY, 0, 0, b"start\n")
    list(transcript.read_new())
    for _ in range(17):
        logs.append(KEY, 0, logs.size(KEY, 0), b"\r" + b"#" * 4000)
        assert transcript.has_buffered
        list(transcript.read_current())
    logs.append(KEY, 0, logs.size(KEY, 0), b"\n")
    assert not transcript.has_buffered
    assert b"".join(transcript.read_current()).endswith(b"#\n")
    logs.append(KEY, 0, logs.size(KEY, 0), b"next\n")
    assert transcript.has_buffered
