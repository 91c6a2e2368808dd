"""The controller's secrets: the keys on disk that sign tokens and encrypt users' secrets, and the user token.

`secret.key` has one key per line. One of them signs and seals, usually the first; the others were retired by
`peers.key_rotation` and still verify and unseal. What a key signed or sealed names the key, by its fingerprint.
Several controllers on one database share a keyring. The database stores only fingerprints.
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
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.controller.runtime.config.config_file import SettingsError
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.runtime.security.incarnations import NO_INCARNATIONS, Incarnations

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

KEY_FILE, TOKEN_FILE = "secret.key", "token"
KEY_BYTES = 32
_TOKEN_FORMAT = "pd2"  # noqa: S105 - how every token begins
_BOOT_FORMAT = "pdb1"  # as in `perdure.agent.link.boot_token`


@dataclass(frozen=True)
class Keyring:
    """Derives and verifies tokens; seals and unseals secrets."""

    key: bytes = field(repr=False)  # KEY_BYTES random bytes
    user_token: str = field(repr=False)
    others: tuple[bytes, ...] = field(default=(), repr=False)  # retired keys, or the next one
    incarnations: Incarnations = field(default=NO_INCARNATIONS, repr=False)

    @staticmethod
    def load_or_create(folder: Path) -> Keyring:
        """The keyring in `folder`, created on first use. Its files are readable only by their owner.

        Raises WrongKeyring for a file that is unreadable or contains no secret: an empty token would admit everybody.
        """
        path = folder / KEY_FILE
        try:
            key, *others = _parse_keys(_read_or_create(path, lambda: secrets.token_hex(KEY_BYTES)))
            path = folder / TOKEN_FILE
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
        return Keyring(key, token, tuple(others))

    def save_keys(self, folder: Path) -> None:
        """Replace `secret.key` in `folder` by this keyring's keys, atomically. Raises OSError."""
        _write_key_file(folder / KEY_FILE, "".join(f"{key.hex()}\n" for key in self.keys))

    @property
    def keys(self) -> tuple[bytes, ...]:
        """All keys, the current one first."""
        return (self.key, *self.others)

    def using(self, key_id: str) -> Keyring | None:
        """The same keyring with the key `key_id` as the current one; None if it has no such key."""
        for key in self.keys:
            if fingerprint(key) == key_id:
                return replace(self, key=key, others=tuple(other for other in self.keys if other != key))
        return None

    def with_new_key(self) -> Keyring:
        """The same keyring with a new current key; all others are kept."""
        return replace(self, key=secrets.token_bytes(KEY_BYTES), others=self.keys)

    def without(self, key_ids: Collection[str]) -> Keyring:
        """The same keyring without these keys, of which the current one cannot be."""
        return replace(self, others=tuple(other for other in self.others if fingerprint(other) not in key_ids))

    def fingerprints(self) -> dict[str, str]:
        """File name → a digest that identifies its content (the current key, the token) without revealing it."""
        return {KEY_FILE: fingerprint(self.key), TOKEN_FILE: fingerprint(self.user_token.encode())}

    def attempt_token(self, attempt: AttemptKey) -> str:
        """The token of this attempt's nodes. Invalid for an attempt with the same key in another incarnation."""
        incarnation = self.incarnations.of(attempt)
        body = ".".join(str(part) for part in (fingerprint(self.key), *attempt, incarnation) if part != "")
        return f"{_TOKEN_FORMAT}.{body}.{_sign(self.key, body)}"

    def boot_token(self, attempt: AttemptKey) -> str:
        """What a machine of this attempt boots with, and trades for the attempt's token: user data are readable."""
        body = ".".join(str(part) for part in (*attempt, self.incarnations.of(attempt)))
        return f"{_BOOT_FORMAT}.{body}.{self.sign(_BOOT_FORMAT, body)}"

    def verify_boot_token(self, token: str) -> AttemptKey | None:
        """The attempt whose boot token this is; as `verify_attempt_token`."""
        match token.split("."):
            case [name, job, task, generation, incarnation, key_id, mac] if name == _BOOT_FORMAT:
                body = ".".join((job, task, generation, incarnation))
                if self.is_signed(_BOOT_FORMAT, body, f"{key_id}.{mac}"):
                    attempt = (int(job), int(task), int(generation))
                    return attempt if incarnation == self.incarnations.of(attempt) else None
        return None

    def verify_attempt_token(self, token: str) -> AttemptKey | None:
        """The attempt whose token this is; None if no key of this keyring signed it, or for another incarnation."""
        attempt, incarnation = self._read_attempt_token(token)
        return attempt if attempt is not None and incarnation == self.incarnations.of(attempt) else None

    def signed_attempt(self, token: str) -> AttemptKey | None:
        """The attempt that the token was created for, in any incarnation; None if no key of this keyring signed it."""
        return self._read_attempt_token(token)[0]

    def _read_attempt_token(self, token: str) -> tuple[AttemptKey | None, str]:
        """The attempt and the incarnation of a token whose signature is valid; (None, "") for any other."""
        body, _, signature = token.removeprefix(f"{_TOKEN_FORMAT}.").rpartition(".")
        match body.split("."):
            case [key_id, job, task, generation, *incarnation] if (job + task + generation).isdecimal():
                key = self._find_key(key_id)
                is_format = token.startswith(f"{_TOKEN_FORMAT}.") and len(incarnation) <= 1
                if is_format and key and hmac.compare_digest(_sign(key, body).encode(), signature.encode()):
                    return (int(job), int(task), int(generation)), "".join(incarnation)
        return None, ""

    def is_user_token(self, token: str) -> bool:
        """Compares in constant time."""
        return hmac.compare_digest(self.user_token.encode(), token.encode())

    def sign(self, purpose: str, body: str) -> str:
        """A signature of `body` by the current key, for one purpose: it begins with the key's id and a dot."""
        return f"{fingerprint(self.key)}.{_mac(self.key, purpose, body)}"

    def is_signed(self, purpose: str, body: str, signature: str) -> bool:
        """Whether a key of this keyring has signed `body` for this purpose. Compares in constant time."""
        key_id, _, mac = signature.partition(".")
        key = self._find_key(key_id)
        return key is not None and hmac.compare_digest(_mac(key, purpose, body).encode(), mac.encode())

    def derive(self, purpose: str) -> bytes:
        """A key for `purpose`, from which neither the current key nor that of another purpose can be found."""
        return _derive(self.key, purpose)

    def seal(self, values: dict[str, str]) -> bytes:
        """Encrypt secrets for the database."""
        return b"%s.%s" % (fingerprint(self.key).encode(), _fernet(self.key).encrypt(json.dumps(values).encode()))

    def unseal(self, sealed: bytes | None) -> dict[str, str]:
        """The inverse of `seal`; {} for None. Raises UnknownKey if this keyring cannot open it."""
        if sealed is None:
            return {}
        key_id, _, encrypted = bytes(sealed).partition(b".")
        key = self._find_key(key_id.decode("ascii", "replace"))
        if key is None:
            raise UnknownKey(
                f"secrets are sealed with a key that {KEY_FILE} does not contain; restore it from a backup"
            )
        values: dict[str, str] = json.loads(_fernet(key).decrypt(encrypted))
        return values

    def reseal(self, sealed: bytes) -> bytes:
        """`sealed` under the current key; unchanged if it is already. Raises UnknownKey."""
        if bytes(sealed).startswith(fingerprint(self.key).encode() + b"."):
            return sealed
        return self.seal(self.unseal(sealed))

    def _find_key(self, key_id: str) -> bytes | None:
        return next((key for key in self.keys if fingerprint(key) == key_id), None)


def fingerprint(secret: bytes) -> str:
    """A digest that identifies a secret without revealing it. The fingerprint of a key is its id."""
    return hashlib.sha256(b"perdure:" + secret).hexdigest()[:16]


def _derive(key: bytes, purpose: str) -> bytes:
    """The key for one purpose, from which neither `key` nor that of another purpose can be found."""
    return hmac.new(key, f"perdure {purpose} key".encode(), hashlib.sha256).digest()


def _sign(key: bytes, body: str) -> str:
    return _mac(key, "signing", f"attempt:{body}")


def _mac(key: bytes, purpose: str, body: str) -> str:
    digest = hmac.new(_derive(key, purpose), body.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _fernet(key: bytes) -> Fernet:
    from cryptography.fernet import Fernet  # imports 9 MiB, and not every job has secrets

    return Fernet(base64.urlsafe_b64encode(_derive(key, "sealing")))


class WrongKeyring(SettingsError):
    """The keyring is invalid, or is not the database's. The text says what to do."""


class UnknownKey(Exception):
    """Something is sealed with a key that this keyring does not have."""


def _parse_keys(text: str) -> list[bytes]:
    """The keys of a key file, at least one. Raises ValueError."""
    keys = [bytes.fromhex(line) for line in text.split("\n")]
    if wrong := [len(key) for key in keys if len(key) != KEY_BYTES]:
        raise ValueError(f"a key has {wrong[0]} bytes")
    if len(set(keys)) < len(keys):
        raise ValueError("it has a key twice")
    return keys


def _read_or_create(path: Path, create: Callable[[], str]) -> str:
    """The file's text, created atomically, since several daemons may share the folder and start at the same time."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = _new_file(path, create() + "\n")
        try:
            with contextlib.suppress(FileExistsError):
                os.link(new, path)
        finally:
            os.unlink(new)
        _sync(path.parent)
    _close_to_others(path)
    return path.read_text().strip()


def _write_key_file(path: Path, text: str) -> None:
    os.replace(_new_file(path, text), path)
    _sync(path.parent)


def _new_file(path: Path, text: str) -> str:
    """A new file beside `path`, on the disk and readable only by its owner."""
    handle, new = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    with os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return new


def _close_to_others(path: Path) -> None:
    """Take other users' access away. A file that is not this user's stays as it is, as one of a mounted volume."""
    status = path.stat()
    if status.st_mode & 0o077 and status.st_uid == os.geteuid():
        path.chmod(status.st_mode & 0o700)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
