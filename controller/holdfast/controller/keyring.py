"""The controller's secrets: one key on disk, from which tokens are derived and with which users' secrets are sealed.

Several controllers on one database have the same. The database knows it by its fingerprints alone.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.fernet import Fernet
from sqlalchemy import Connection

from holdfast.controller.leases import remember, remembered
from holdfast.controller.settings import SettingsError

KEY_FILE, TOKEN_FILE = "secret.key", "token"

AttemptKey = tuple[int, int, int]
"""(job id, task index, generation)"""


@dataclass(frozen=True)
class Keyring:
    """Derives and checks tokens, seals and opens secrets. `key` is 32 random bytes."""

    key: bytes
    user_token: str

    @staticmethod
    def of(home: Path) -> Keyring:
        """The keyring under `home`, made on first use. Its files are readable by their owner alone."""
        key = _read_or_make(home / KEY_FILE, lambda: secrets.token_hex(32))
        return Keyring(bytes.fromhex(key), _read_or_make(home / TOKEN_FILE, lambda: secrets.token_urlsafe(32)))

    def fingerprints(self) -> dict[str, str]:
        """File → what tells it from another and gives nothing of it away."""
        values = {KEY_FILE: self.key, TOKEN_FILE: self.user_token.encode()}
        return {name: hashlib.sha256(b"holdfast:" + value).hexdigest()[:16] for name, value in values.items()}

    def attempt_token(self, key: AttemptKey) -> str:
        """A token that is worth this one attempt."""
        body = ".".join(str(part) for part in key)
        return f"hf1.{body}.{self._sign('attempt', body)}"

    def attempt_of(self, token: str) -> AttemptKey | None:
        """The attempt that `token` is worth; None if it was not made here."""
        match token.split("."):
            case ["hf1", job, task, generation, signature] if (job + task + generation).isdecimal():
                expected = self._sign("attempt", f"{job}.{task}.{generation}")
                if hmac.compare_digest(expected.encode(), signature.encode()):
                    return int(job), int(task), int(generation)
        return None

    def is_user(self, token: str) -> bool:
        return hmac.compare_digest(self.user_token.encode(), token.encode())

    def seal(self, values: dict[str, str]) -> bytes:
        return self._fernet().encrypt(json.dumps(values).encode())

    def open(self, sealed: bytes | None) -> dict[str, str]:
        if sealed is None:
            return {}
        values: dict[str, str] = json.loads(self._fernet().decrypt(sealed))
        return values

    def _sign(self, purpose: str, body: str) -> str:
        digest = hmac.new(self.key, f"{purpose}:{body}".encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def _fernet(self) -> Fernet:
        derived = hmac.new(self.key, b"seal", hashlib.sha256).digest()
        return Fernet(base64.urlsafe_b64encode(derived))


class WrongKeyring(SettingsError):
    """The keyring is not that of the database. The text says what to do."""


def shared_keyring(folder: Path, conn: Connection, *, others_live: bool) -> Keyring:
    """The keyring in `folder`, which must be that of the database. The first daemon of all may make it.

    A user token may be changed while no other daemon lives; the key never, since it sealed what is stored. Raises
    WrongKeyring.
    """
    fix = f"copy {KEY_FILE} and {TOKEN_FILE} there from another controller, or set `keyring` to a folder that has them"
    is_known = bool(remembered(conn, f"keyring.{KEY_FILE}", ""))
    missing = [name for name in (KEY_FILE, TOKEN_FILE) if not (folder / name).exists()]
    if is_known and missing:
        raise WrongKeyring(f"{folder / missing[0]}: there is none, and this database has a keyring already; {fix}")
    try:
        found = Keyring.of(folder)
    except (OSError, ValueError) as error:
        raise WrongKeyring(f"{folder}: the keyring can not be read: {error}; {fix}") from error
    for name, fingerprint in found.fingerprints().items():
        recorded = remembered(conn, f"keyring.{name}", fingerprint)
        may_change = not recorded or (name == TOKEN_FILE and not others_live)
        if fingerprint != recorded and not may_change:
            seen = f"its fingerprint is {fingerprint}, and that of this database is {recorded}"
            raise WrongKeyring(f"{folder / name}: this is not what the other controllers use: {seen}; {fix}")
        remember(conn, f"keyring.{name}", fingerprint)
    return found


def _read_or_make(path: Path, make: Callable[[], str]) -> str:
    """Complete or not at all, whoever makes it at the same time: several daemons may share the folder."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, new = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # readable by its owner alone
        try:
            with os.fdopen(handle, "w") as file:
                file.write(make() + "\n")
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(new, path)
        finally:
            os.unlink(new)
    return path.read_text().strip()
