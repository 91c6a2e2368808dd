"""Checks that the keyring of a controller is the one that its database was used with."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection

from perdure.controller.runtime.security.keyring import KEY_FILE, TOKEN_FILE, Keyring, WrongKeyring
from perdure.controller.store.records import facts


def load_database_keyring(folder: Path, conn: Connection, *, is_alone: bool, others_live: bool) -> Keyring:
    """Load the keyring in `folder`, which must be that of the database. The first daemon creates it.

    The user token may change while no other daemon is running. The key may never change: it encrypted stored secrets,
    and nodes with tokens derived from it would stop their workloads. `is_alone`: no other daemon can share the
    database, so a token that is lost may be created again. Raises WrongKeyring.
    """
    needed = (KEY_FILE,) if is_alone else (KEY_FILE, TOKEN_FILE)
    fix = f"copy {' and '.join(needed)} there from {'a backup' if is_alone else 'another controller'}, or set `keyring`"
    fix += f" to a folder that has {'it' if is_alone else 'them'}"
    is_known = bool(facts.get_or_create(conn, f"keyring.{KEY_FILE}", ""))
    missing = [name for name in needed if not (folder / name).exists()]
    if is_known and missing:
        raise WrongKeyring(
            f"{folder / missing[0]}: the file is missing, and this database has a keyring already; {fix}"
        )
    keyring = Keyring.load_or_create(folder)
    for name, fingerprint in keyring.fingerprints().items():
        recorded = facts.get_or_create(conn, f"keyring.{name}", fingerprint)
        may_change = not recorded or (name == TOKEN_FILE and not others_live)
        if fingerprint != recorded and not may_change:
            mismatch = f"its fingerprint is {fingerprint}, and that of this database is {recorded}"
            raise WrongKeyring(f"{folder / name}: this database was used with another one: {mismatch}; {fix}")
        facts.set(conn, f"keyring.{name}", fingerprint)
    return keyring
