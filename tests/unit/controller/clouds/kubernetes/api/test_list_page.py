"""A page of a list is decoded as `json.loads` decodes it, item by item."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.controller.clouds.kubernetes.api.list_page import decode_page

ITEMS = [{"metadata": {"name": "a", "note": 'brackets ]}{[ and "quotes"'}}, {"metadata": {"name": "ü"}}]
PAGE = {"kind": "PodList", "metadata": {"resourceVersion": "7", "continue": "x"}, "items": ITEMS, "extra": [1, None]}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("page", [PAGE, {}, {"items": []}, {"items": None}, {"metadata": {}, "items": ITEMS[:1]}])
def test_page__is_what_json_says(page: dict[str, Any], indent: int | None) -> None:
    assert decode_page(json.dumps(page, indent=indent).encode(), lambda one: one) == page


def test_items__are_reduced_one_by_one() -> None:
    page = decode_page(json.dumps(PAGE).encode(), lambda one: {"name": one["metadata"]["name"]})
    assert page["items"] == [{"name": "a"}, {"name": "ü"}]
    assert page["metadata"] == PAGE["metadata"]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"items": [', b'{"items": [{}', b'{"items": [{} {}]}', b'{"a" 1}', b"<p>"]
)
def test_body__that_is_no_page_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match="Expecting"):
        decode_page(body, lambda one: one)
