"""The controllers to which this user has signed in with `perdure login`: `logins.json` in PERDURE_HOME.

The file is readable only by its owner. A token in it counts for the one address that it was issued at.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypedDict

from perdure.sdk.connection.endpoint import LOGINS_FILE, NoController
from perdure.sdk.connection.private_home import make_private

_LOCK_FILE = "logins.lock"


class Login(TypedDict):
    """A sign-in. `expires_at`: ISO 8601, with a time zone."""

    token: str
    user: str
    expires_at: str | None


def checked(value: Mapping[str, Any]) -> Login:
    """A sign-in that a controller has sent, or that was kept. Raises ValueError, which does not show the token."""
    token, user, expires_at = (value.get(name) for name in ("token", "user", "expires_at"))
    if not (isinstance(token, str) and token and isinstance(user, str)):
        raise ValueError("it has no token, or no user")
    if expires_at is not None and (not isinstance(expires_at, str) or _time(expires_at) is None):
        raise ValueError("its end is no time")
    return Login(token=token, user=user, expires_at=expires_at)


def _time(text: str) -> datetime | None:
    """None for a text that is no time, or has no time zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if time.tzinfo is None else time


def token_for(home: Path, url: str, now: datetime | None = None) -> str | None:
    """The token of the sign-in to a controller; None if there is none. Raises NoController if it has expired."""
    login = _load(home).get(url)
    if login is None:
        return None
    now = now or datetime.now(UTC)  # noqa: TID251 - a command, which has no clock of its own
    if login["expires_at"] is not None and now >= datetime.fromisoformat(login["expires_at"]):
        raise NoController(f"the sign-in to {url} as {login['user']} has expired", fix=f"run: perdure login {url}")
    return login["token"]


def store(home: Path, url: str, login: Login) -> None:
    """Add a sign-in, in place of an earlier one to the same controller. Raises OSError and NoController."""
    make_private(home)
    with _locked(home):
        _write(home, {**_load(home), url: login})


def remove(home: Path, url: str) -> bool:
    """Forget a sign-in. False if there was none."""
    if not (home / LOGINS_FILE).exists():
        return False
    with _locked(home):
        known = dict(_load(home))
        if known.pop(url, None) is None:
            return False
        _write(home, known)
    return True


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Keeps other commands from changing the file between `_load` and `_write`. Readers need no lock."""
    with open(home / _LOCK_FILE, "a", opener=lambda path, flags: os.open(path, flags, 0o600)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _load(home: Path) -> Mapping[str, Login]:
    try:
        known = json.loads((home / LOGINS_FILE).read_text())
        return {str(url): checked(one) for url, one in known.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        path = home / LOGINS_FILE
        raise NoController(
            f"{path} cannot be read: {type(error).__name__}", fix=f"remove {path}, and sign in again"
        ) from error


def _write(home: Path, logins: Mapping[str, Login]) -> None:
    """Replaces the file as a whole: another command may read it."""
    with NamedTemporaryFile("w", dir=home, prefix=".logins-", delete=False) as file:  # readable only by its owner
        json.dump(logins, file, indent=1)
    os.replace(file.name, home / LOGINS_FILE)
