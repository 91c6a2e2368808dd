"""Another Perdure for a controller that runs on a machine of its own. Jobs go on: their nodes call again."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.controller.clock import Clock
from perdure.controller.hosting import asking, bringing, caretaker, configuring
from perdure.controller.hosting.asking import CannotHost
from perdure.controller.hosting.bringing import Say
from perdure.sdk import hosted
from perdure.sdk.client import Client, ConnectionLost

_ONE_AT_A_TIME = threading.Lock()
VARIABLE = "PERDURE_SOFTWARE"


def upgrade(home: Path, clock: Clock, say: Say) -> None:
    """The controller runs this Perdure, and this computer's configuration, when it returns. Raises CannotHost."""
    record = hosted.read(home)
    if record is None or record.stage != hosted.UP:
        raise CannotHost("no controller is up: bring one up with `perdure controller up`")
    cloud = configuring.cloud_of(home, record.cloud, record.region, clock)
    client = Client(record.endpoint)
    before = client.controller()
    said = client.put_software(configuring.packed(home, cloud, record.url, record.port))
    if not said["is_new"]:
        say(f"The controller runs this Perdure ({said['version']}) and this configuration already.")
        return
    say("Installed; the controller starts again, and jobs go on …")

    def is_back() -> bool:
        try:
            return client.controller()["started_at"] != before["started_at"]
        except ConnectionLost:
            return False

    asking.until(is_back, bringing.SERVE_S, f"it does not come back at {record.url}: see its machine's log")
    say(f"The controller runs version {client.controller()['version']}, at {record.url}.")


def software_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where this daemon's software is kept by a caretaker, which starts it again; None if it has none."""
    found = environ.get(VARIABLE)
    return Path(found) if found else None


def take(home: Path, software: Path, pack: bytes) -> dict[str, Any]:
    """Install a pack, to be run from the next start on: {"version", "is_new"}. Raises caretaker.CannotInstall."""
    with _ONE_AT_A_TIME:
        return _take(home, software, pack)


def _take(home: Path, software: Path, pack: bytes) -> dict[str, Any]:
    before = _state(home, software)
    with tempfile.NamedTemporaryFile(dir=software, prefix=".pack-") as file:
        file.write(pack)
        file.flush()
        said = caretaker.install(str(home), file.name)
    return {"version": said["version"], "is_new": _state(home, software) != before}


def _state(home: Path, software: Path) -> tuple[str, bytes]:
    return os.path.realpath(software / "current"), (home / "config.yaml").read_bytes()
