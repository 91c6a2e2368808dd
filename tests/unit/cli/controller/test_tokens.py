"""`perdure tokens create`: the role that the token has in effect."""

from __future__ import annotations

import pytest

from perdure.sdk.connection import users
from unit.cli.commands import RunPerdure


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("admin", "role user (admin was requested, and alice is user),"),
        ("viewer", "role viewer,"),
        ("user", "role user,"),
    ],
)
def test_create__shows_the_role_in_effect(
    perdure: RunPerdure, monkeypatch: pytest.MonkeyPatch, asked: str, shown: str
) -> None:
    made = {"id": "a", "user": "alice", "role": asked, "expires_at": None, "token": "secret"}
    monkeypatch.setattr(users, "create_token", lambda *_words, **_options: made)
    monkeypatch.setattr(users, "list_users", lambda _client: [{"name": "alice", "role": "user"}])
    result = perdure("tokens", "create", "alice", "--role", asked)
    assert (result.exit_code, result.stdout) == (0, "secret\n")
    assert shown in result.stderr
