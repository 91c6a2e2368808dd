"""Searches a transcript for a text, from a line on or upward from a line, for a limited time.

A line is searched as a terminal shows it: without the codes of colors, and without what a carriage return has
overwritten. Of letters, only A to Z match regardless of their case. Of a line that is much longer than is shown of it,
only about the first MiB is searched, so that a search ends soon after its time is over.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic

from perdure.controller.store.logs.transcript_index import TranscriptView

BUDGET_S = 1.0
_COLORS = re.compile(rb"\x1b\[[\d;]*m")
_MAX_SEARCHED_BYTES = 2**20  # of a line that spans several blocks


@dataclass(frozen=True)
class SearchResult:
    """`lines`: those with the text, in the direction of the search. `continue_at`: where another search continues; None
    if all lines in that direction were searched."""

    lines: list[int]
    continue_at: int | None


def search_down(
    view: TranscriptView,
    text: str,
    first: int,
    limit: int,
    *,
    budget_s: float = BUDGET_S,
    timer: Callable[[], float] = monotonic,
) -> SearchResult:
    """The first `limit` lines from line `first` on. Raises what `view` raises."""
    needle, give_up_at = _needle(text), timer() + budget_s
    hits: list[int] = []
    at = max(0, bisect_left(view.blocks, first, key=lambda block: block.line) - 1)
    searched = _Searched(view)
    numbers = searched.numbers[bisect_left(searched.numbers, at) :]
    line, carried = 0, b""
    skips_rest = False  # of a line before `first`
    for number in numbers:
        block = view.blocks[number]
        if number == numbers[0]:
            line, skips_rest = block.line, not block.begins_line
        data = carried + searched.text_of(number)
        if skips_rest:
            _, newline, data = data.partition(b"\n")
            line, skips_rest = line + len(newline), not newline
        is_last = number == numbers[-1]
        end = len(data) if is_last else data.rfind(b"\n") + 1
        for hit in matching_lines(data[:end], line, needle):
            if hit >= first:
                hits.append(hit)
                if len(hits) == limit:
                    return SearchResult(hits, hit + 1)
        line += data.count(b"\n", 0, end)
        carried = data[end:]
        if timer() > give_up_at and line > first and not is_last:
            return SearchResult(hits, line)
    return SearchResult(hits, None)


def search_up(
    view: TranscriptView,
    text: str,
    before: int,
    limit: int,
    *,
    budget_s: float = BUDGET_S,
    timer: Callable[[], float] = monotonic,
) -> SearchResult:
    """The last `limit` lines before line `before`, in descending order. Raises what `view` raises."""
    needle, give_up_at = _needle(text), timer() + budget_s
    hits: list[int] = []
    carried = b""
    searched = _Searched(view)
    end = bisect_left(view.blocks, before, key=lambda block: block.line)
    for number in reversed(searched.numbers[: bisect_left(searched.numbers, end)]):
        block = view.blocks[number]
        data = searched.text_of(number) + carried
        begin = 0 if block.begins_line else data.find(b"\n") + 1 or len(data)
        line = block.line + (0 if block.begins_line else 1)
        for hit in reversed(list(matching_lines(data[begin:], line, needle))):
            if hit < before:
                hits.append(hit)
                if len(hits) == limit:
                    return SearchResult(hits, hit if hit else None)
        carried = data[:begin]
        if timer() > give_up_at and line < before and number:
            return SearchResult(hits, line)
    return SearchResult(hits, None)


class _Searched:
    """The blocks of a view that are searched: all but those in the middle of a long line. `numbers`: in order."""

    def __init__(self, view: TranscriptView) -> None:
        self._view = view
        self.numbers: list[int] = []
        line_start = 0  # of the line that the block continues, or a little later
        for number, block in enumerate(view.blocks):
            if block.begins_line:
                line_start = block.start
            if block.newlines or block.start - line_start < _MAX_SEARCHED_BYTES:
                self.numbers.append(number)
            if block.newlines:
                line_start = block.end
        self._skipped = set(range(len(view.blocks))).difference(self.numbers)

    def text_of(self, number: int) -> bytes:
        """The text of a block, without the rest of a line whose middle was skipped."""
        text = self._view.text_of(self._view.blocks[number])
        return text[text.index(b"\n") :] if number - 1 in self._skipped else text


def matching_lines(data: bytes, line: int, needle: bytes) -> Iterator[int]:
    """The numbers of the lines of `data`, the first of which is `line`, that have `needle`, which is in lower case."""
    if b"\x1b" in data:
        data = _COLORS.sub(b"", data)
    data = data.lower()
    counted, at = 0, data.find(needle)
    while at >= 0:
        line += data.count(b"\n", counted, at)
        begin, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
        end = len(data) if end < 0 else end
        if b"\r" not in data[begin:end] or needle in _overwritten(data[begin:end]):
            yield line
        counted, at = at, data.find(needle, end)


def _overwritten(line: bytes) -> bytes:
    """What a terminal shows of a line with carriage returns."""
    return next((part for part in reversed(line.split(b"\r")) if part), b"")


def _needle(text: str) -> bytes:
    return text.encode().lower()
