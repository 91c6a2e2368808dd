"""The check that a keyring is that of its database."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from perdure.controller.peers.keyring_check import load_database_keyring
from perdure.controller.runtime.security.keyring import KEY_FILE, TOKEN_FILE, WrongKeyring


def load_fingerprints(
    folder: Path, database: Engine, *, others_live: bool = True, is_alone: bool = False
) -> dict[str, str]:
    with database.begin() as conn:
        return load_database_keyring(
            folder, conn, is_alone=is_alone, others_live=others_live and not is_alone
        ).fingerprints()


def test_keyring_check__all_daemons_have_the_same_keyring(database: Engine, tmp_path: Path) -> None:
    first = load_fingerprints(tmp_path / "one", database)
    assert load_fingerprints(tmp_path / "one", database) == first
    with pytest.raises(WrongKeyring, match="has a keyring already"):
        load_fingerprints(tmp_path / "two", database)
    assert not (tmp_path / "two").exists(), "no keyring is created that cannot be right"
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in (KEY_FILE, TOKEN_FILE):
        (copy / name).write_bytes((tmp_path / "one" / name).read_bytes())
    assert load_fingerprints(copy, database) == first
    (copy / TOKEN_FILE).write_text("another\n")
    with pytest.raises(WrongKeyring, match="fingerprint"):
        load_fingerprints(copy, database)
    assert load_fingerprints(copy, database, others_live=False) != first, "without other daemons the token may change"
    (copy / KEY_FILE).write_text("00" * 32)
    with pytest.raises(WrongKeyring, match=r"secret\.key"):
        load_fingerprints(copy, database, others_live=False)


def test_keyring_check__single_controller_may_replace_its_token_but_not_its_key(
    tmp_path: Path, database: Engine
) -> None:
    """A new key would be useless: it cannot decrypt stored secrets or verify the tokens of running nodes."""
    first = load_fingerprints(tmp_path, database, is_alone=True)
    (tmp_path / TOKEN_FILE).unlink()
    second = load_fingerprints(tmp_path, database, is_alone=True)
    assert second[KEY_FILE] == first[KEY_FILE]
    assert second[TOKEN_FILE] != first[TOKEN_FILE]
    (tmp_path / KEY_FILE).unlink()
    with pytest.raises(WrongKeyring, match="has a keyring already"):
        load_fingerprints(tmp_path, database, is_alone=True)
    assert not (tmp_path / KEY_FILE).exists()
