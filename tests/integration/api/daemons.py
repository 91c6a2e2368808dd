"""A separate daemon over real HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

from support.helpers.timing import Deadline

START_S = 60.0


@dataclass(frozen=True)
class Daemon:
    """A running daemon."""

    home: Path
    process: subprocess.Popen[bytes]
    record: dict[str, Any]  # its controller.json

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
        """Its log and its standard error."""
        return "".join(path.read_text() for path in self.home.glob("controller*.log*"))

    def errors(self) -> list[str]:
        """The log lines about its own failures. A client that leaves during a handshake is not one."""
        lines = [line for line in self.log().splitlines() if "without completing handshake" not in line]
        return [line for line in lines if "Traceback" in line or '"level": "error"' in line or "exc_info" in line]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(START_S)


StartDaemon = Callable[[Path, str], "Daemon"]
"""`start`, or a function like it."""


def start(home: Path, config: str) -> Daemon:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.yaml").write_text(config)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    with open(home / "controller.stderr.log", "wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "perdure.controller", "serve", "--home", str(home)],
            env=environ,
            stdout=stderr,
            stderr=stderr,
        )
    record, deadline = home / "controller.json", Deadline(START_S)
    while not record.exists():
        output = (home / "controller.stderr.log").read_text()
        assert process.poll() is None, output
        assert not deadline.has_passed, f"the daemon does not start: {output}"
        Event().wait(0.05)
    return Daemon(home, process, json.loads(record.read_text()))
