"""The controller's secrets: one key on disk, from which tokens are derived and with which users' secrets are sealed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.fernet import Fernet

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
        key = _read_or_make(home / "secret.key", lambda: secrets.token_hex(32))
        return Keyring(bytes.fromhex(key), _read_or_make(home / "token", lambda: secrets.token_urlsafe(32)))

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


def _read_or_make(path: Path, make: Callable[[], str]) -> str:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    with os.fdopen(handle, "w") as file:
        value = make()
        file.write(value + "\n")
        file.flush()
        os.fsync(file.fileno())
    return value
