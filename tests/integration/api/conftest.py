"""A daemon of its own for each module, over real HTTP: its local cloud has no room, so no job ever gets a machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import pytest

START_S = 60.0
FULL = "local:\n  zones:\n    local-a: {region: local, capacity: 0}\n"


@dataclass(frozen=True)
class Daemon:
    """A running daemon. `record`: its controller.json."""

    home: Path
    process: subprocess.Popen[bytes]
    record: dict[str, Any]

    @property
    def url(self) -> str:
        return str(self.record["endpoint"])

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 0)

    @property
    def token(self) -> str:
        return (self.home / "token").read_text().strip()

    def log(self) -> str:
        """All that it wrote: its log, and its standard error."""
        return "".join(path.read_text() for path in self.home.glob("controller*.log*"))

    def complaints(self) -> list[str]:
        """What it wrote of failures of its own. That a client left in the middle of a handshake is none."""
        lines = [line for line in self.log().splitlines() if "without completing handshake" not in line]
        return [line for line in lines if "Traceback" in line or '"level": "error"' in line or "exc_info" in line]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(START_S)


def start(home: Path, config: str) -> Daemon:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.yaml").write_text(config)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    with open(home / "controller.stderr.log", "wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "perdure.controller", "serve", "--home", str(home)],
            env=environ,
            stdout=errors,
            stderr=errors,
        )
    record, give_up_at = home / "controller.json", time.monotonic() + START_S
    while not record.exists():
        said = (home / "controller.stderr.log").read_text()
        assert process.poll() is None, said
        assert time.monotonic() < give_up_at, f"it does not start: {said}"
        Event().wait(0.05)
    return Daemon(home, process, json.loads(record.read_text()))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    one = start(tmp_path_factory.mktemp("daemon") / "home", FULL)
    yield one
    one.stop()


@pytest.fixture(scope="session")
def start_daemon() -> Callable[[Path, str], Daemon]:
    """`start`, for modules whose daemons are not like the others."""
    return start
