"""The tokens that a real daemon gives to its nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.store.engine.database import make_engine
from perdure.controller.store.records import incarnations


def attempt_token(home: Path, key: AttemptKey) -> str:
    """The token of an attempt of the daemon on `home`, which uses SQLite."""
    engine = make_engine(f"sqlite:///{home / 'perdure.db'}")
    try:
        with engine.connect() as conn:
            known = incarnations.load(conn)
    finally:
        engine.dispose()
    return replace(Keyring.load_or_create(home), incarnations=known).attempt_token(key)
