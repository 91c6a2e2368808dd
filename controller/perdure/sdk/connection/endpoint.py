"""Where a controller is and how its callers name it, as plain data; and the errors that a user can fix."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_HOME = "~/.perdure"
LOGINS_FILE = "logins.json"  # in PERDURE_HOME: the tokens of `perdure login`
MIGRATE_TO = "PERDURE_MIGRATE_TO"  # the environment variable with the URL of the database to move to


class ClientError(Exception):
    """An error that the user can fix. `where`: file, line or field; `fix`: what to do, as an imperative."""

    def __init__(self, message: str, *, where: str | None = None, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  {self.fix}" if self.fix else text


class NoController(ClientError):
    """No controller answers, and none could be started."""


@dataclass(frozen=True)
class Endpoint:
    """The address of a controller, and what its callers need to talk to it."""

    url: str  # without a trailing slash
    token: str = field(repr=False)
    home: Path | None = None  # of the embedded controller; None for any other
    pid: int | None = None  # of the embedded controller; None for any other
    # SHA-256 (lower-case hexadecimal) of the one certificate to trust; None trusts what an authority signed.
    fingerprint: str | None = None


def home_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder in which the embedded controller keeps everything. It need not exist. Raises NoController."""
    return expand_home(environ.get("PERDURE_HOME") or DEFAULT_HOME).absolute()


def expand_home(path: str) -> Path:
    """`path` with `~` replaced. Raises NoController if HOME is empty, where `~` would be the root of the disk."""
    if path.startswith("~") and os.environ.get("HOME") == "":
        raise NoController(f"HOME is empty, so {path} is no folder", fix="set HOME, or PERDURE_HOME to a folder")
    return Path(path).expanduser()
