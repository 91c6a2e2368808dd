"""The last lines of a transcript, found without keeping it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.controller.transcript import start_of_tail


@given(st.lists(st.text("ab\n", max_size=8).map(str.encode), max_size=12), st.integers(1, 6))
def test_the_tail_is_the_last_lines(pieces: list[bytes], count: int) -> None:
    whole = b"".join(pieces)
    expected = b"".join(whole.splitlines(keepends=True)[-count:])
    assert whole[start_of_tail(pieces, count) :] == expected
