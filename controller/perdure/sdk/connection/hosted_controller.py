"""The record of the controller that `perdure controller up` created: `hosted.json` in PERDURE_HOME.

It contains the controller's token, so only its owner may read it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from perdure.sdk.connection.endpoint import Endpoint, NoController
from perdure.sdk.connection.private_home import make_private

FILE = "hosted.json"
CREATING, UP, DOWN = "creating", "up", "down"


@dataclass(frozen=True)
class Hosted:
    """The controller, its machine and its disk."""

    stage: str  # CREATING: there may be a machine that does not serve yet; UP; DOWN: only the disk is left
    id: str  # the tag of the machine and of the disk
    infra: str
    port: int
    cloud: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    launch_token: str = ""  # the idempotency token of the last launch
    instance: str = ""
    disk: str = ""
    disk_gib: int = 0
    role: str = ""
    allowed_cidr: str = ""
    url: str = ""
    token: str = ""
    fingerprint: str = ""

    def __repr__(self) -> str:
        return f"Hosted({self.stage}, {self.id}, {self.infra})"

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.url, self.token, fingerprint=self.fingerprint or None)


def load(home: Path) -> Hosted | None:
    """The record, or None if there is none. Raises NoController for a file that cannot be trusted."""
    path = home / FILE
    try:
        mode, record = path.stat().st_mode & 0o777, json.loads(path.read_text())
        if mode & 0o077:
            raise NoController(
                f"others may read the key to the controller (mode {mode:04o})", where=str(path), fix=f"chmod 600 {path}"
            )
        known = {field.name for field in fields(Hosted)}
        return Hosted(**{name: value for name, value in record.items() if name in known})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise NoController(
            f"cannot be read: {error}",
            where=str(path),
            fix="restore it from a backup: it holds the controller's address",
        ) from error


def save(home: Path, hosted: Hosted) -> None:
    """Replace the file atomically, and sync it to the disk."""
    make_private(home)
    new = home / f"{FILE}.new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(asdict(hosted), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    new.replace(home / FILE)


def remove(home: Path) -> None:
    """Delete the record. Idempotent."""
    (home / FILE).unlink(missing_ok=True)


def serving_endpoint(home: Path) -> Endpoint | None:
    """The endpoint of the controller if it is up, whether or not it answers; otherwise None."""
    hosted = load(home)
    return hosted.endpoint if hosted is not None and hosted.stage == UP else None
