"""Tables: whatever the cells hold, lines are as wide as they should be."""

from __future__ import annotations

from unicodedata import east_asian_width

from hypothesis import given
from hypothesis import strategies as st

from perdure.cli import table
from perdure.cli.table import Column

COLUMNS = (Column("ID"), Column("NAME", least=4, keep_end=True), Column("N", right=True), Column("STATUS"))
CELL = st.text(alphabet="ab ↳日%é", max_size=8)


def painted(text: str) -> str:
    return f"<{text}>"


@given(st.lists(st.tuples(CELL, CELL, CELL, CELL), max_size=6), st.sampled_from([None, 12, 24]))
def test_rows_that_are_written_the_fast_way_are_as_those_written_cell_by_cell(
    rows: list[tuple[str, ...]], width: int | None
) -> None:
    layout = table.fit(COLUMNS, rows[:3], width=width)
    paints = {"STATUS": painted, "N": painted}
    slow = [table._line(layout._shown(), layout.widths, [row[i] for i in layout.kept], paints) for row in rows]
    assert layout.lines(rows, paints) == slow


def test_columns_stand_below_each_other_and_wide_letters_count_twice() -> None:
    lines = table.render(COLUMNS, [("1", "日本", "7", "OK"), ("22", "ab", "10", "%s")], width=None)
    assert lines == ["ID  NAME   N  STATUS", "1   日本   7  OK", "22  ab    10  %s"]
    assert east_asian_width("日") == "W"
