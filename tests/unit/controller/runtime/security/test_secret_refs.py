"""Masked secrets do not appear in the value, and resolving restores it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.controller.runtime.security.secret_refs import mask_secrets, resolve_secrets

NAMES = st.from_regex("[A-Z_][A-Z0-9_]{0,5}", fullmatch=True)
SECRETS = st.dictionaries(NAMES, st.text(max_size=6), max_size=4)
TEXTS = st.text(max_size=20).filter(lambda text: "${" not in text)


@given(st.data())
def test_resolve_secrets__restores_masked_value(data: st.DataObject) -> None:
    secrets = data.draw(
        SECRETS.filter(lambda values: not any("${" in value or "}" in value for value in values.values()))
    )
    pieces = TEXTS | st.sampled_from([*secrets.values(), "x"])
    value = {"url": "".join(data.draw(st.lists(pieces, max_size=4))), "list": [1, None, data.draw(pieces)]}
    if "${" not in value["url"]:
        assert resolve_secrets(mask_secrets(value, secrets), secrets) == value


@pytest.mark.parametrize("secret", ["hunter2", "hunter2-and-more"])
def test_mask_secrets__hides_secret_that_is_part_of_another(secret: str) -> None:
    secrets = {"A": "hunter2", "B": "hunter2-and-more"}
    value = {"url": f"https://{secret}@x", f"/data/{secret}": [secret]}
    assert "hunter2" not in json.dumps(mask_secrets(value, secrets))
    assert resolve_secrets(mask_secrets(value, secrets), secrets) == value


def test_resolve_secrets__without_secrets_changes_nothing() -> None:
    assert resolve_secrets({"run": "echo ${} ${HOME}"}, {}) == {"run": "echo ${} ${HOME}"}
