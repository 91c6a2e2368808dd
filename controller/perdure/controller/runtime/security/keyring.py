"""The controller's secrets: a key on disk that derives tokens and encrypts users' secrets, and the user token.

Several controllers on one database share a keyring. The database stores only its fingerprints.
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

from perdure.controller.runtime.config.config_file import SettingsError
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.runtime.security.incarnations import NO_INCARNATIONS, Incarnations

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

KEY_FILE, TOKEN_FILE = "secret.key", "token"
KEY_BYTES = 32


@dataclass(frozen=True)
class Keyring:
    """Derives and verifies tokens; seals and unseals secrets."""

    key: bytes  # KEY_BYTES random bytes
    user_token: str
    incarnations: Incarnations = NO_INCARNATIONS

    @staticmethod
    def load_or_create(home: Path) -> Keyring:
        """The keyring in `home`, created on first use. Its files are readable only by their owner.

        Raises WrongKeyring for a file that is unreadable or contains no secret: an empty token would admit everybody.
        """
        path = home / KEY_FILE
        try:
            key = bytes.fromhex(_read_or_create(path, lambda: secrets.token_hex(KEY_BYTES)))
            if len(key) != KEY_BYTES:
                raise ValueError(f"it contains {len(key)} bytes")
            path = home / TOKEN_FILE
            token = _read_or_create(path, lambda: secrets.token_urlsafe(32))
            if not token:
                raise ValueError("it is empty")
        except (OSError, ValueError) as error:
            fix = (
                "restore the file from a backup"
                if path.name == KEY_FILE
                else "remove the file, and a new one is created"
            )
            raise WrongKeyring(f"{path}: invalid: {error}; {fix}") from error
        return Keyring(key, token)

    def fingerprints(self) -> dict[str, str]:
        """File name → a digest that identifies its content without revealing it."""
        values = {KEY_FILE: self.key, TOKEN_FILE: self.user_token.encode()}
        return {name: hashlib.sha256(b"perdure:" + value).hexdigest()[:16] for name, value in values.items()}

    def attempt_token(self, key: AttemptKey) -> str:
        """The token of this attempt's nodes. Invalid for an attempt with the same key in another incarnation."""
        incarnation = self.incarnations.of(key)
        body = ".".join(str(part) for part in (*key, incarnation) if part != "")
        return f"pd1.{body}.{self._sign('attempt', body)}"

    def verify_attempt_token(self, token: str) -> AttemptKey | None:
        """The attempt whose token this is; None if this keyring did not create it, or in another incarnation."""
        key = self.signed_attempt(token)
        return (
            key if key is not None and hmac.compare_digest(self.attempt_token(key).encode(), token.encode()) else None
        )

    def signed_attempt(self, token: str) -> AttemptKey | None:
        """The attempt that the token was created for, in any incarnation; None if this key did not sign it."""
        match token.split("."):
            case ["pd1", job, task, generation, *_incarnation, signature] if (job + task + generation).isdecimal():
                body = token.removeprefix("pd1.").rpartition(".")[0]
                if hmac.compare_digest(self._sign("attempt", body).encode(), signature.encode()):
                    return int(job), int(task), int(generation)
        return None

    def is_user_token(self, token: str) -> bool:
        """Compares in constant time."""
        return hmac.compare_digest(self.user_token.encode(), token.encode())

    def seal(self, values: dict[str, str]) -> bytes:
        """Encrypt secrets for the database."""
        return self._fernet().encrypt(json.dumps(values).encode())

    def unseal(self, sealed: bytes | None) -> dict[str, str]:
        """The inverse of `seal`; {} for None."""
        if sealed is None:
            return {}
        values: dict[str, str] = json.loads(self._fernet().decrypt(sealed))
        return values

    def _sign(self, purpose: str, body: str) -> str:
        digest = hmac.new(self.key, f"{purpose}:{body}".encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def _fernet(self) -> Fernet:
        from cryptography.fernet import Fernet  # imports 9 MiB, and not every job has secrets

        derived = hmac.new(self.key, b"seal", hashlib.sha256).digest()
        return Fernet(base64.urlsafe_b64encode(derived))


class WrongKeyring(SettingsError):
    """The keyring is invalid, or is not the database's. The text says what to do."""


def _read_or_create(path: Path, create: Callable[[], str]) -> str:
    """The file's text, created atomically, since several daemons may share the folder and start at the same time."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, new = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # readable only by its owner
        try:
            with os.fdopen(handle, "w") as file:
                file.write(create() + "\n")
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
