"""The controller that `perdure controller up` brought up, as PERDURE_HOME remembers it: `hosted.json`.

It holds the key to the controller, and is its owner's alone to read.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from perdure.sdk.endpoint import Endpoint, NoController

FILE = "hosted.json"
MAKING, UP, DOWN = "making", "up", "down"


@dataclass(frozen=True)
class Hosted:
    """`stage`: MAKING while a machine may be there that does not serve yet, UP, or DOWN when the disk alone is left.

    `id`: what the machine and the disk are tagged with. `push`: the idempotency token of the last launch.
    """

    stage: str
    id: str
    infra: str
    port: int
    cloud: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    push: str = ""
    instance: str = ""
    disk: str = ""
    disk_gib: int = 0
    role: str = ""
    callers: str = ""
    url: str = ""
    token: str = ""
    fingerprint: str = ""

    def __repr__(self) -> str:
        return f"Hosted({self.stage}, {self.id}, {self.infra})"

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.url, self.token, fingerprint=self.fingerprint or None)


def read(home: Path) -> Hosted | None:
    """None if none was ever brought up from here. Raises NoController for a file that can not be trusted."""
    path = home / FILE
    try:
        mode, told = path.stat().st_mode & 0o777, json.loads(path.read_text())
        if mode & 0o077:
            raise NoController(
                f"others may read the key to the controller (mode {mode:04o})", where=str(path), fix=f"chmod 600 {path}"
            )
        known = {field.name for field in fields(Hosted)}
        return Hosted(**{name: value for name, value in told.items() if name in known})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise NoController(
            f"can not be read: {error}", where=str(path), fix="put it back from a copy; it says where the controller is"
        ) from error


def write(home: Path, hosted: Hosted) -> None:
    """Replace the file in one step, on the disk before this returns."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = home / f"{FILE}.new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(asdict(hosted), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    new.replace(home / FILE)


def forget(home: Path) -> None:
    """As if none had ever been brought up from here."""
    (home / FILE).unlink(missing_ok=True)


def serving(home: Path) -> Endpoint | None:
    """The controller that was brought up, whether or not it answers; None if there is none."""
    found = read(home)
    return found.endpoint if found is not None and found.stage == UP else None
