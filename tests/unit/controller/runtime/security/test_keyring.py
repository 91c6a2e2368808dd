"""Tokens are valid for one attempt, stored secrets are encrypted, and only the owner can read the files."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import stat
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from perdure.controller.runtime.security.keyring import Keyring, UnknownKey, WrongKeyring, fingerprint

ATTEMPT = (7, 0, 2)


def keyring_of(byte: bytes, *others: bytes) -> Keyring:
    return Keyring(byte * 32, "u", tuple(other * 32 for other in others))


def test_attempt_token__is_valid_for_its_attempt_only(tmp_path: Path) -> None:
    keyring = Keyring.load_or_create(tmp_path)
    token = keyring.attempt_token(ATTEMPT)
    assert keyring.verify_attempt_token(token) == ATTEMPT
    assert keyring_of(b"x").verify_attempt_token(token) is None


@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_attempt_token__signs_key_job_task_and_generation(place: int) -> None:
    """A node that could change any of them would get the spec, and the secrets, of another attempt."""
    keyring = keyring_of(b"k", b"o")
    parts = keyring.attempt_token((1, 1, 1)).split(".")
    parts[place] = keyring_of(b"o").attempt_token((2, 2, 2)).split(".")[place]
    assert keyring.verify_attempt_token(".".join(parts)) is None


def test_attempt_token__is_signed_with_a_key_of_its_own() -> None:
    """Neither the key in the file nor the one that seals secrets signs tokens."""
    key = b"k" * 32
    *body, signature = keyring_of(b"k").attempt_token(ATTEMPT).split(".")
    text = f"attempt:{'.'.join(body[1:])}".encode()
    sealing = hmac.new(key, b"perdure sealing key", hashlib.sha256).digest()
    signed = {
        used: base64.urlsafe_b64encode(hmac.new(used, text, hashlib.sha256).digest()).decode().rstrip("=")
        for used in (key, sealing, hmac.new(key, b"perdure signing key", hashlib.sha256).digest())
    }
    assert [used for used, by in signed.items() if by == signature] == [list(signed)[2]]
    sealed = keyring_of(b"k").seal({"A": "b"}).partition(b".")[2]
    assert Fernet(base64.urlsafe_b64encode(sealing)).decrypt(sealed) == b'{"A": "b"}'


@pytest.mark.parametrize(
    "token", ["", "pd2", "pd2.1.2.3", "pd2.k.a.b.c.d", "pd2.k.1.0.1.ä", "pd1.k.7.0.2.x", "x" * 10_000, "pd2......"]
)
def test_verify_attempt_token__rejects_malformed_token(token: str) -> None:
    key_id = fingerprint(b"k" * 32)
    assert keyring_of(b"k").verify_attempt_token(token.replace(".k.", f".{key_id}.")) is None


def test_attempt_token__of_a_retired_key_is_valid_until_the_key_is_removed() -> None:
    old = keyring_of(b"o")
    token, sealed = old.attempt_token(ATTEMPT), old.seal({"A": "b"})
    rotated = old.with_new_key()
    assert rotated.key != old.key
    assert rotated.verify_attempt_token(token) == ATTEMPT
    assert rotated.unseal(sealed) == {"A": "b"}
    assert rotated.attempt_token(ATTEMPT) != token
    assert old.verify_attempt_token(rotated.attempt_token(ATTEMPT)) is None
    removed = rotated.without([fingerprint(old.key)])
    assert removed.keys == (rotated.key,)
    assert removed.verify_attempt_token(token) is None
    with pytest.raises(UnknownKey):
        removed.unseal(sealed)


def test_reseal__changes_only_what_another_key_sealed() -> None:
    old, rotated = keyring_of(b"o"), keyring_of(b"n", b"o")
    sealed = rotated.reseal(old.seal({"A": "b"}))
    assert keyring_of(b"n").unseal(sealed) == {"A": "b"}
    assert rotated.reseal(sealed) is sealed


def test_key_file__keeps_all_keys_in_order(tmp_path: Path) -> None:
    first = Keyring.load_or_create(tmp_path)
    rotated = first.with_new_key()
    rotated.save_keys(tmp_path)
    assert Keyring.load_or_create(tmp_path) == rotated
    assert stat.S_IMODE((tmp_path / "secret.key").stat().st_mode) == 0o600
    assert rotated.using(fingerprint(first.key)).keys == (first.key, rotated.key)
    assert rotated.using("0" * 16) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret.key", "token"]


def test_load_or_create__takes_others_access_away(tmp_path: Path) -> None:
    Keyring.load_or_create(tmp_path)
    for name in ("secret.key", "token"):
        (tmp_path / name).chmod(0o647)
    Keyring.load_or_create(tmp_path)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("secret.key", "token")} == {0o600}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_load_or_create__reads_files_of_a_volume_that_belong_to_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Keyring.load_or_create(tmp_path)
    for path in tmp_path.iterdir():
        path.chmod(0o644)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # other users may not enter the folders above
    os.seteuid(65534)
    try:
        Keyring.load_or_create(Path())
    finally:
        os.seteuid(0)


def test_repr__shows_no_secret() -> None:
    assert repr(Keyring(b"k" * 32, "hunter2", (b"o" * 32,))) == "Keyring()"


def test_load_or_create__is_stable_and_private(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "keyring"
    Keyring.load_or_create(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
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
    ("name", "content"),
    [
        ("token", ""),
        ("token", " \n"),
        ("secret.key", ""),
        ("secret.key", "xy"),
        ("secret.key", "00" * 31),
        ("secret.key", ("00" * 32 + "\n") * 2),
    ],
)
def test_load_or_create__rejects_file_without_a_secret(tmp_path: Path, name: str, content: str) -> None:
    """An empty token would admit everybody."""
    Keyring.load_or_create(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(WrongKeyring, match=f"{name}: invalid"):
        Keyring.load_or_create(tmp_path)
