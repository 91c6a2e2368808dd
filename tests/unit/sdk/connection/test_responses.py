"""Parsing a response: every control character of its strings is escaped, however the JSON text writes it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.cli.output.text import printable
from perdure.sdk.connection.responses import parse_clean

TEXTS = st.text(st.characters()) | st.sampled_from(
    ["\x1b[2J", "\\u001b", "\\\x1b", "\u202e", "a\nb", "a\tb", "\x7f", "\x9b", "é", "\\n"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)


@given(VALUES, st.booleans())
def test_parse_clean__escapes_as_if_each_string_had_been_looked_at(value: object, ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert parse_clean(body, printable) == printable(json.loads(body))


def test_parse_clean__spares_a_text_without_control_characters() -> None:
    def refuse(value: Any) -> Any:
        raise AssertionError(value)

    assert parse_clean(b'{"name": "a \\"b\\" \\\\ \\n c"}', refuse) == {"name": 'a "b" \\ \n c'}


@pytest.mark.parametrize("text", ["\\u001b[2J", "\\r", "\\t", "\\b", "\u202e", "\x7f"])
def test_parse_clean__finds_each_way_of_writing_one(text: str) -> None:
    assert parse_clean(f'["{text}"]'.encode(), printable)[0].isprintable()
