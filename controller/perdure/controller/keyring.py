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
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from perdure.controller.leases import remember, remembered
from perdure.controller.settings import SettingsError

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

KEY_FILE, TOKEN_FILE = "secret.key", "token"
KEY_BYTES = 32

AttemptKey = tuple[int, int, int]
"""(job id, task index, generation)"""


@dataclass(frozen=True)
class Keyring:
    """Derives and checks tokens, seals and opens secrets. `key` is 32 random bytes."""

    key: bytes
    user_token: str

    @staticmethod
    def of(home: Path) -> Keyring:
        """The keyring under `home`, made on first use. Its files are readable by their owner alone.

        Raises WrongKeyring for a file that can not be read, or that holds no secret: an empty token would let everybody
        in.
        """
        path = home / KEY_FILE
        try:
            key = bytes.fromhex(_read_or_make(path, lambda: secrets.token_hex(KEY_BYTES)))
            if len(key) != KEY_BYTES:
                raise ValueError(f"it holds {len(key)} bytes")
            path = home / TOKEN_FILE
            token = _read_or_make(path, lambda: secrets.token_urlsafe(32))
            if not token:
                raise ValueError("it is empty")
        except (OSError, ValueError) as error:
            made = "put the file back from a copy" if path.name == KEY_FILE else "remove the file, and one is made"
            raise WrongKeyring(f"{path}: this can not be used: {error}; {made}") from error
        return Keyring(key, token)

    def fingerprints(self) -> dict[str, str]:
        """File → what tells it from another and gives nothing of it away."""
        values = {KEY_FILE: self.key, TOKEN_FILE: self.user_token.encode()}
        return {name: hashlib.sha256(b"perdure:" + value).hexdigest()[:16] for name, value in values.items()}

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
        from cryptography.fernet import Fernet  # 9 MiB, and not every job has secrets

        derived = hmac.new(self.key, b"seal", hashlib.sha256).digest()
        return Fernet(base64.urlsafe_b64encode(derived))


class WrongKeyring(SettingsError):
    """The keyring is not that of the database. The text says what to do."""


def keyring_of(folder: Path, conn: Connection, *, is_alone: bool, others_live: bool) -> Keyring:
    """The keyring in `folder`, which must be that of the database. The first daemon of all may make it.

    A user token may be changed while no other daemon lives; the key never, since it sealed what is stored, and since
    running nodes, whose tokens were made of it, would kill their workloads. `is_alone`: no other daemon can share the
    database, so a token that is lost may be made anew. Raises WrongKeyring.
    """
    needed = (KEY_FILE,) if is_alone else (KEY_FILE, TOKEN_FILE)
    fix = f"copy {' and '.join(needed)} there from {'a backup' if is_alone else 'another controller'}, or set `keyring`"
    fix += f" to a folder that has {'it' if is_alone else 'them'}"
    is_known = bool(remembered(conn, f"keyring.{KEY_FILE}", ""))
    missing = [name for name in needed if not (folder / name).exists()]
    if is_known and missing:
        raise WrongKeyring(f"{folder / missing[0]}: there is none, and this database has a keyring already; {fix}")
    found = Keyring.of(folder)
    for name, fingerprint in found.fingerprints().items():
        recorded = remembered(conn, f"keyring.{name}", fingerprint)
        may_change = not recorded or (name == TOKEN_FILE and not others_live)
        if fingerprint != recorded and not may_change:
            seen = f"its fingerprint is {fingerprint}, and that of this database is {recorded}"
            raise WrongKeyring(f"{folder / name}: this is not what this database was used with: {seen}; {fix}")
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
        _sync(path.parent)
    return path.read_text().strip()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
