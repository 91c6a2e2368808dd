"""Searching a transcript finds the lines that a reader of the whole text finds, in both directions, and in parts."""

from __future__ import annotations

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.controller.store.logs import transcript_index, transcript_search
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.controller.store.logs.transcript_index import TranscriptIndex
from perdure.controller.store.logs.transcript_search import SearchResult, matching_lines, search_down, search_up
from unit.controller.store.logs.test_transcript_index import FailingLogStore, KnownTranscript, info


@given(
    st.text("abA\n", max_size=200).map(str.encode), st.text("ab", min_size=1, max_size=3), st.integers(1, 30), st.data()
)
def test_search__finds_what_reading_everything_finds(text: bytes, needle: str, block: int, data: st.DataObject) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(transcript_index, "BLOCK_BYTES", block)
        logs = FileLogStore(Path(folder))
        index = TranscriptIndex(logs, KnownTranscript(logs, [info(1, 1, has_ended=False)]))
        for at in range(0, len(text), 7):
            logs.append((1, 0, 1), 0, at, text[at : at + 7])
            index.view()
        view = index.view()
        whole = b"".join(view.pieces(0, view.size)).lower().split(b"\n")
        expected = [number for number, line in enumerate(whole) if needle.encode() in line]
        limit, line = data.draw(st.integers(1, 4)), data.draw(st.integers(0, len(whole) + 1))
        times = itertools.count() if data.draw(st.booleans()) else itertools.repeat(0)
        options = {"budget_s": 0.0, "timer": lambda: float(next(times))}
        hits, at_line, calls = [], line, 0
        while at_line is not None:
            found = search_down(view, needle, at_line, limit, **options)  # type: ignore[arg-type]
            assert len(found.lines) <= limit
            assert found.continue_at is None or found.continue_at > at_line
            hits, at_line, calls = hits + found.lines, found.continue_at, calls + 1
        assert hits == [number for number in expected if number >= line]
        hits, at_line = [], line
        while at_line is not None:
            found = search_up(view, needle, at_line, limit, **options)  # type: ignore[arg-type]
            assert found.continue_at is None or found.continue_at < at_line
            hits, at_line = hits + found.lines, found.continue_at
        assert hits == [number for number in reversed(expected) if number < line]


@pytest.mark.parametrize(
    ("line", "is_match"),
    [
        (b"the Loss is", True),
        (b"the lo\x1b[31mss\x1b[0m is", True),
        (b"loss 1\rloss 2\r", True),
        (b"loss 1\rdone", False),
        (b"los s", False),
    ],
)
def test_matching_lines__are_as_a_terminal_shows_them(line: bytes, is_match: bool) -> None:
    assert list(matching_lines(b"loss\n" + line + b"\nloss", 7, b"loss")) == ([7, 8, 9] if is_match else [7, 9])


def test_search__of_a_line_without_an_end_terminates(tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path)
    index = TranscriptIndex(logs, KnownTranscript(logs, [info(1, 1, has_ended=False)]))
    for at in range(0, 5 * 2**20, 2**20):
        logs.append((1, 0, 1), 0, at, b"x" * 2**20)
    view = index.view()
    times = itertools.count()
    down = search_down(view, "needle", 0, 5, budget_s=0.0, timer=lambda: float(next(times)))
    up = search_up(view, "needle", 2, 5, budget_s=0.0, timer=lambda: float(next(times)))
    assert down.lines == up.lines == []
    while down.continue_at is not None:
        down = search_down(view, "needle", down.continue_at, 5, budget_s=0.0, timer=lambda: float(next(times)))
    while up.continue_at is not None:
        up = search_up(view, "needle", up.continue_at, 5, budget_s=0.0, timer=lambda: float(next(times)))


def test_search__of_a_long_line_reads_its_begin_only(tmp_path: Path) -> None:
    """Both directions find the same: what is in the first MiB of a line, and all of the lines after it."""
    logs = FailingLogStore(tmp_path)
    begin = b"first needle\n" + b"x" * 500_000 + b"needle"
    logs.append((1, 0, 1), 0, 0, begin)
    for _ in range(40):
        logs.append((1, 0, 1), 0, logs.size((1, 0, 1), 0), b"x" * 2**20)
    logs.append((1, 0, 1), 0, logs.size((1, 0, 1), 0), b"needle\nno\n")
    for _ in range(40):
        logs.append((1, 0, 1), 0, logs.size((1, 0, 1), 0), b"y" * 2**20)
    logs.append((1, 0, 1), 0, logs.size((1, 0, 1), 0), b"needle\nlast needle\n")
    view = TranscriptIndex(logs, KnownTranscript(logs, [info(1, 1, has_ended=False)])).view()
    logs.bytes_read = 0
    assert search_down(view, "needle", 0, 9) == SearchResult([1, 2, 5], None)
    assert search_up(view, "needle", 9, 9) == SearchResult([5, 2, 1], None)
    assert 0 < logs.bytes_read < 12 * 2**20
    assert search_down(view, "no", 3, 9, budget_s=0.0) == SearchResult([3], 4)
    assert search_up(view, "no", 4, 9).lines == [3]


@given(
    st.text("abA\n", max_size=200).map(str.encode), st.text("ab", min_size=1, max_size=3), st.integers(1, 30), st.data()
)
def test_search__of_long_lines_agrees_with_their_begins(
    text: bytes, needle: str, block: int, data: st.DataObject
) -> None:
    """Whatever is skipped, no line is found that has no match, no short one is missed, and the numbers are right."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(transcript_index, "BLOCK_BYTES", block)
        patched.setattr(transcript_search, "_MAX_SEARCHED_BYTES", data.draw(st.integers(1, 20)))
        logs = FileLogStore(Path(folder))
        index = TranscriptIndex(logs, KnownTranscript(logs, [info(1, 1, has_ended=False)]))
        for at in range(0, len(text), 7):
            logs.append((1, 0, 1), 0, at, text[at : at + 7])
            index.view()
        view = index.view()
        whole = b"".join(view.pieces(0, view.size)).lower().split(b"\n")
        all_hits = {number for number, line in enumerate(whole) if needle.encode() in line}
        begun = {n for n, line in enumerate(whole) if needle.encode() in line[: transcript_search._MAX_SEARCHED_BYTES]}
        down = search_down(view, needle, 0, 1000).lines
        assert down == sorted(search_up(view, needle, len(whole) + 1, 1000).lines)
        assert begun <= set(down) <= all_hits
