"""Tables: column widths and alignment for any cells."""

from __future__ import annotations

from unicodedata import east_asian_width

from hypothesis import given
from hypothesis import strategies as st

from perdure.cli.output import table
from perdure.cli.output.table import Column

COLUMNS = (Column("ID"), Column("NAME", min_width=4, keep_end=True), Column("N", right=True), Column("STATUS"))
CELL = st.text(alphabet="ab ↳日%é", max_size=8)


def painted(text: str) -> str:
    return f"<{text}>"


@given(st.lists(st.tuples(CELL, CELL, CELL, CELL), max_size=6), st.sampled_from([None, 12, 24]))
def test_layout_lines__equal_the_lines_built_cell_by_cell(rows: list[tuple[str, ...]], width: int | None) -> None:
    layout = table.fit(COLUMNS, rows[:3], width=width)
    paints = {"STATUS": painted, "N": painted}
    slow = [table._line(layout._shown(), layout.widths, [row[i] for i in layout.kept], paints) for row in rows]
    assert layout.lines(rows, paints) == slow


def test_render__aligns_columns_with_wide_characters() -> None:
    lines = table.render(COLUMNS, [("1", "日本", "7", "OK"), ("22", "ab", "10", "%s")], width=None)
    assert lines == ["ID  NAME   N  STATUS", "1   日本   7  OK", "22  ab    10  %s"]
    assert east_asian_width("日") == "W"
