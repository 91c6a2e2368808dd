"""Tokens are worth one attempt; secrets at rest are not readable; files are their owner's alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from perdure.controller.keyring import Keyring, WrongKeyring


def test_a_token_is_worth_its_attempt_and_no_other(tmp_path: Path) -> None:
    keyring = Keyring.of(tmp_path)
    token = keyring.attempt_token((7, 0, 2))
    assert keyring.attempt_of(token) == (7, 0, 2)
    assert keyring.attempt_of(token.replace("hf1.7.", "hf1.8.")) is None
    assert Keyring(b"x" * 32, "u").attempt_of(token) is None


@pytest.mark.parametrize("token", ["", "hf1", "hf1.1.2.3", "hf1.a.b.c.d", "hf1.1.0.1.ä", "x" * 10_000])
def test_nonsense_is_worth_nothing(token: str) -> None:
    assert Keyring(b"k" * 32, "u").attempt_of(token) is None


def test_the_keyring_is_the_same_after_a_restart_and_private(tmp_path: Path) -> None:
    first = Keyring.of(tmp_path)
    assert Keyring.of(tmp_path) == first
    for name in ("secret.key", "token"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_sealed_secrets_come_back_and_do_not_show(tmp_path: Path) -> None:
    keyring = Keyring.of(tmp_path)
    sealed = keyring.seal({"WANDB_API_KEY": "hunter2"})
    assert b"hunter2" not in sealed
    assert keyring.open(sealed) == {"WANDB_API_KEY": "hunter2"}
    assert keyring.open(None) == {}


@pytest.mark.parametrize(("name", "holds"), [("token", ""), ("token", " \n"), ("secret.key", ""), ("secret.key", "xy")])
def test_what_holds_no_secret_is_refused(tmp_path: Path, name: str, holds: str) -> None:
    """An empty token would be everybody's."""
    Keyring.of(tmp_path)
    (tmp_path / name).write_text(holds)
    with pytest.raises(WrongKeyring, match=f"{name}: this can not be used"):
        Keyring.of(tmp_path)
