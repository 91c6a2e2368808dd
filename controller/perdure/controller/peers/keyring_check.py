"""Checks that the keyring of a controller is the one that its database was used with."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection

from perdure.controller.runtime.security.keyring import KEY_FILE, TOKEN_FILE, Keyring, WrongKeyring
from perdure.controller.store.records import facts

KEY_FACT, TOKEN_FACT = f"keyring.{KEY_FILE}", f"keyring.{TOKEN_FILE}"


def load_database_keyring(folder: Path, conn: Connection, *, is_alone: bool, others_live: bool) -> Keyring:
    """Load the keyring in `folder`, which must be that of the database. The first daemon creates it.

    The current key is the one that the database names; `key_rotation` alone replaces it. The file may have others: keys
    that were retired, and one whose rotation was interrupted. The user token may change while no other daemon is
    running. `is_alone`: no other daemon can share the database, so a token that is lost may be created again. Raises
    WrongKeyring.
    """
    needed = (KEY_FILE,) if is_alone else (KEY_FILE, TOKEN_FILE)
    fix = f"copy {' and '.join(needed)} there from {'a backup' if is_alone else 'another controller'}, or set `keyring`"
    fix += f" to a folder that has {'it' if is_alone else 'them'}"
    is_known = bool(facts.get_or_create(conn, KEY_FACT, ""))
    missing = [name for name in needed if not (folder / name).exists()]
    if is_known and missing:
        raise WrongKeyring(
            f"{folder / missing[0]}: the file is missing, and this database has a keyring already; {fix}"
        )
    keyring = Keyring.load_or_create(folder)
    recorded = facts.get(conn, KEY_FACT) or ""
    keyring = keyring.using(recorded) or keyring
    fingerprints = keyring.fingerprints()
    recorded_token = facts.get_or_create(conn, TOKEN_FACT, fingerprints[TOKEN_FILE])
    checks = (
        (KEY_FILE, recorded, not recorded),
        (TOKEN_FILE, recorded_token, not recorded_token or not others_live),
    )
    for name, expected, may_change in checks:
        if fingerprints[name] != expected and not may_change:
            mismatch = f"its fingerprint is {fingerprints[name]}, and that of this database is {expected}"
            if name == KEY_FILE:
                mismatch += "; perhaps `rotate-key` replaced it"
            raise WrongKeyring(f"{folder / name}: this database was used with another one: {mismatch}; {fix}")
        facts.set(conn, f"keyring.{name}", fingerprints[name])
    return keyring


def require_unchanged(conn: Connection, keyring: Keyring) -> None:
    """Check again, under a lock, that no rotation has replaced the key. Raises WrongKeyring.

    A daemon calls it once its lease is stored: a rotation either sees the lease, and refuses, or is seen here.
    """
    if facts.lock(conn, KEY_FACT, shared=True) != keyring.fingerprints()[KEY_FILE]:
        raise WrongKeyring(f"`rotate-key` has just replaced the key in {KEY_FILE}: start the controller again")
