"""Tokens are valid for one attempt, stored secrets are encrypted, and only the owner can read the files."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from perdure.controller.runtime.security.keyring import Keyring, WrongKeyring


def test_attempt_token__is_valid_for_its_attempt_only(tmp_path: Path) -> None:
    keyring = Keyring.load_or_create(tmp_path)
    token = keyring.attempt_token((7, 0, 2))
    assert keyring.verify_attempt_token(token) == (7, 0, 2)
    assert keyring.verify_attempt_token(token.replace("pd1.7.", "pd1.8.")) is None
    assert Keyring(b"x" * 32, "u").verify_attempt_token(token) is None


@pytest.mark.parametrize("token", ["", "pd1", "pd1.1.2.3", "pd1.a.b.c.d", "pd1.1.0.1.ä", "x" * 10_000])
def test_verify_attempt_token__rejects_malformed_token(token: str) -> None:
    assert Keyring(b"k" * 32, "u").verify_attempt_token(token) is None


def test_load_or_create__is_stable_and_private(tmp_path: Path) -> None:
    first = Keyring.load_or_create(tmp_path)
    assert Keyring.load_or_create(tmp_path) == first
    for name in ("secret.key", "token"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_seal__hides_secrets_and_unseal_restores_them(tmp_path: Path) -> None:
    keyring = Keyring.load_or_create(tmp_path)
    sealed = keyring.seal({"WANDB_API_KEY": "hunter2"})
    assert b"hunter2" not in sealed
    assert keyring.unseal(sealed) == {"WANDB_API_KEY": "hunter2"}
    assert keyring.unseal(None) == {}


@pytest.mark.parametrize(
    ("name", "content"), [("token", ""), ("token", " \n"), ("secret.key", ""), ("secret.key", "xy")]
)
def test_load_or_create__rejects_file_without_a_secret(tmp_path: Path, name: str, content: str) -> None:
    """An empty token would admit everybody."""
    Keyring.load_or_create(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(WrongKeyring, match=f"{name}: invalid"):
        Keyring.load_or_create(tmp_path)
