"""The controllers to which this user has signed in with `perdure login`: `logins.json` in PERDURE_HOME.

The file is readable only by its owner. A token in it counts for the one address that it was issued at.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TypedDict

from perdure.sdk.connection.endpoint import LOGINS_FILE, NoController
from perdure.sdk.connection.private_home import make_private


class Login(TypedDict):
    """A sign-in. `expires_at`: ISO 8601, UTC."""

    token: str
    user: str
    expires_at: str | None


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
    _write(home, {**_load(home), url: login})


def remove(home: Path, url: str) -> bool:
    """Forget a sign-in. False if there was none."""
    known = dict(_load(home))
    if known.pop(url, None) is None:
        return False
    _write(home, known)
    return True


def _load(home: Path) -> Mapping[str, Login]:
    try:
        known = json.loads((home / LOGINS_FILE).read_text())
        return {
            str(url): Login(token=one["token"], user=one["user"], expires_at=one["expires_at"])
            for url, one in known.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        path = home / LOGINS_FILE
        raise NoController(
            f"{path} cannot be read: {type(error).__name__}", fix=f"remove {path}, and sign in again"
        ) from error


def _write(home: Path, logins: Mapping[str, Login]) -> None:
    """Replaces the file as a whole: another command may read it."""
    with NamedTemporaryFile("w", dir=home, prefix=".logins-", delete=False) as file:  # readable only by its owner
        json.dump(logins, file, indent=1)
    os.replace(file.name, home / LOGINS_FILE)
