"""The last lines of a transcript, found without keeping it."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.api.logs import _start_of_tail


class Pieces:
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def more(self) -> Iterator[bytes]:
        return iter(self._pieces)


@given(st.lists(st.text("ab\n", max_size=8).map(str.encode), max_size=12), st.integers(1, 6))
def test_the_tail_is_the_last_lines(pieces: list[bytes], count: int) -> None:
    whole = b"".join(pieces)
    expected = b"".join(whole.splitlines(keepends=True)[-count:])
    assert whole[_start_of_tail(Pieces(pieces), count) :] == expected  # type: ignore[arg-type]
