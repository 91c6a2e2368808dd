"""Prints tables that fit a given width: columns shrink first, then the least important ones are dropped."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import le

from perdure.cli.output.text import one_line

GAP = "  "
Painter = Callable[[str], str]


@dataclass(frozen=True)
class Column:
    """One column of a table. A cell that is too wide is cut at its end, unless `keep_end` or `wrap` is set."""

    title: str
    right: bool = False  # aligned to the right
    min_width: int | None = None  # the width that it may shrink to; None: it never shrinks
    drop_rank: int = 0  # the highest rank is dropped first; 0: never dropped
    keep_end: bool = False  # cut at the beginning instead
    wrap: bool = False  # continue in the next line instead


@dataclass(frozen=True)
class Layout:
    """Which columns of a table are shown, and how wide they are. Created by `fit`."""

    columns: tuple[Column, ...]
    kept: tuple[int, ...]  # indexes into `columns`
    widths: tuple[int, ...]  # of the kept columns

    def titles(self) -> str:
        shown = self._shown()
        return _line(shown, self.widths, [column.title for column in shown], {})

    def lines(self, rows: Sequence[Sequence[str]], paints: Mapping[str, Painter] | None = None) -> list[str]:
        """The lines of `rows`. `paints`: functions that color a cell, by column title."""
        shown, lines = self._shown(), []
        painted = [(n, paints[column.title]) for n, column in enumerate(shown) if paints and column.title in paints]
        plain = _plain_format(shown, self.widths, {n for n, _ in painted})
        for row in rows:
            cells = [one_line(row[i]) for i in self.kept]
            if all(map(le, map(len, cells), self.widths)) and _is_plain(cells):
                for n, paint in painted:
                    padding = " " * (self.widths[n] - len(cells[n]))
                    cells[n] = padding + paint(cells[n]) if shown[n].right else paint(cells[n]) + padding
                lines.append((plain % tuple(cells)).rstrip())
            else:
                wrapped = _wrapped(shown, self.widths, cells)
                lines += [_line(shown, self.widths, part, paints or {}) for part in wrapped]
        return lines

    def widened(self, rows: Sequence[Sequence[str]]) -> Layout:
        """This layout with columns wide enough for `rows`, too."""
        widest = _natural_widths(self._shown(), [[row[i] for i in self.kept] for row in rows])
        return Layout(self.columns, self.kept, tuple(map(max, self.widths, widest)))

    def _shown(self) -> list[Column]:
        return [self.columns[i] for i in self.kept]


def fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int | None) -> Layout:
    """A layout for these rows. `width` None: no limit."""
    kept = list(range(len(columns)))
    while True:
        widths = _widths([columns[i] for i in kept], [[row[i] for i in kept] for row in rows], width)
        droppable = [i for i in kept if columns[i].drop_rank]
        if widths is not None or not droppable:
            break
        kept.remove(max(droppable, key=lambda i: columns[i].drop_rank))
    if widths is None:
        widths = [columns[i].min_width or _natural_width(columns[i], [row[i] for row in rows]) for i in kept]
    return Layout(tuple(columns), tuple(kept), tuple(widths))


def render(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None,
    paints: Mapping[str, Painter] | None = None,
) -> list[str]:
    """The lines of a table, titles first. `width` None: no limit. `paints`: functions that color a cell, by title."""
    layout = fit(columns, rows, width=width)
    return [layout.titles(), *layout.lines(rows, paints)]


def screen_width() -> int | None:
    """The terminal's width; None if output goes to a file or a pipe and COLUMNS is not set."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        from shutil import get_terminal_size

        return get_terminal_size().columns
    return None


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[int] | None:
    """A width for each column, or None if even the minimum widths exceed `width`."""
    widths = _natural_widths(columns, rows)
    if width is None:
        return widths
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - width
    while excess > 0:
        slack = [w - max(c.min_width, len(c.title)) if c.min_width else 0 for w, c in zip(widths, columns, strict=True)]
        widest = max(range(len(widths)), key=lambda i: (slack[i] > 0, widths[i]))
        if slack[widest] <= 0:
            return None
        widths[widest] -= 1
        excess -= 1
    return widths


def _natural_widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    return [_natural_width(column, [row[i] for row in rows]) for i, column in enumerate(columns)]


def _natural_width(column: Column, cells: Sequence[str]) -> int:
    lengths = map(len if "".join(cells).isascii() else _display_width, cells)
    return max(len(column.title), max(lengths, default=0))


def _line(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str], paints: Mapping[str, Painter]) -> str:
    shown = []
    for column, width, cell in zip(columns, widths, cells, strict=True):
        text = _cut(cell, width, keep_end=column.keep_end)
        padding = " " * (width - _display_width(text))
        painted = paints[column.title](text) if column.title in paints else text
        shown.append(padding + painted if column.right else painted + padding)
    return GAP.join(shown).rstrip()


def _plain_format(columns: Sequence[Column], widths: Sequence[int], painted: Collection[int]) -> str:
    """A `%` format of a line, for cells that fit and whose characters all take one terminal column."""
    sides = ("" if column.right else "-" for column in columns)
    parts = (f"%{side}{width}s" for side, width in zip(sides, widths, strict=True))
    return GAP.join("%s" if n in painted else part for n, part in enumerate(parts))


def _wrapped(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str]) -> Iterator[list[str]]:
    """The lines of a row: more than one only if a cell wraps."""
    from textwrap import wrap

    parts = [
        wrap(cell, width, break_on_hyphens=False) if column.wrap and _display_width(cell) > width else [cell]
        for column, width, cell in zip(columns, widths, cells, strict=True)
    ]
    for line in range(max(map(len, parts))):
        yield [part[line] if line < len(part) else "" for part in parts]


def _cut(text: str, width: int, *, keep_end: bool) -> str:
    if _display_width(text) <= width:
        return text
    while text and _display_width(text) > width - 1:
        text = text[1:] if keep_end else text[:-1]
    return "…" + text if keep_end else text + "…"


def _is_plain(cells: Sequence[str]) -> bool:
    """Whether every character takes one terminal column."""
    return "".join(cells).isascii() or all(_display_width(cell) == len(cell) for cell in cells)


def _display_width(text: str) -> int:
    """How many terminal columns `text` takes."""
    return len(text) if text.isascii() else _wide_display_width(text)


@lru_cache(maxsize=4096)
def _wide_display_width(text: str) -> int:
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)
