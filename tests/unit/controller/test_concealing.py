"""What is concealed does not show, and is what it was when it is revealed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.controller.concealing import conceal, reveal

NAMES = st.from_regex("[A-Z_][A-Z0-9_]{0,5}", fullmatch=True)
SECRETS = st.dictionaries(NAMES, st.text(max_size=6), max_size=4)
TEXTS = st.text(max_size=20).filter(lambda text: "${" not in text)


@given(st.data())
def test_it_comes_back_the_same(data: Any) -> None:
    secrets = data.draw(
        SECRETS.filter(lambda given: not any("${" in value or "}" in value for value in given.values()))
    )
    pieces = TEXTS | st.sampled_from([*secrets.values(), "x"])
    value = {"url": "".join(data.draw(st.lists(pieces, max_size=4))), "list": [1, None, data.draw(pieces)]}
    if "${" not in value["url"]:
        assert reveal(conceal(value, secrets), secrets) == value


@pytest.mark.parametrize("short", ["hunter2", "hunter2-and-more"])
def test_it_does_not_show(short: str) -> None:
    secrets = {"A": "hunter2", "B": "hunter2-and-more"}
    value = {"url": f"https://{short}@x", f"/data/{short}": [short]}
    assert "hunter2" not in json.dumps(conceal(value, secrets))
    assert reveal(conceal(value, secrets), secrets) == value
