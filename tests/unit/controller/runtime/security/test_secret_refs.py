"""Masked secrets do not appear in the value, and resolving restores it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.controller.runtime.security.secret_refs import (
    GIT_CREDENTIALS,
    mask_secrets,
    resolve_secrets,
    without_credentials,
)

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


@pytest.mark.parametrize(
    ("url", "hidden"),
    [
        ("https://user:pw@host/x.git", "user:pw"),
        ("https://token@host/x.git", "token"),
        ("HTTPS://u:p@w@host:8443/x@y", "u:p@w"),
        ("ssh://git:pw@host/x.git", "git:pw"),
        ("https://${USER}:pw@host/x.git", "hunter2:pw"),
        ("https://user:${USER}@host/x.git", None),
        ("https://user:@host/x.git", None),
        ("ssh://git@host/x.git", None),
        ("git@host:org/x.git", None),
        ("https://host/a@b.git", None),
        ("/home/me/x.git", None),
    ],
)
def test_without_credentials__separates_what_is_secret(url: str, hidden: str | None) -> None:
    secrets = {"USER": "hunter2"}
    stored, credentials = without_credentials(url, secrets)
    assert credentials == hidden
    if hidden is None:
        assert stored == url
    else:
        assert hidden not in stored
        everything = {**secrets, GIT_CREDENTIALS: hidden}
        assert resolve_secrets(stored, everything) == resolve_secrets(url, secrets)
