"""A node seen from outside, whose network link can be broken in one direction or both.

A direction is broken by a wrong address in the sender's neighbour table: packets leave and are lost, without a reset or
an error, as with a firewall that has forgotten a connection.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import psutil

CONTROLLER, CONTROLLER_MAC = "10.77.0.1", "02:00:00:00:00:01"
NOBODYS_MAC = "02:00:00:00:00:99"


def ip(*words: str, of: int | None = None) -> None:
    """Run `ip`, in the network namespace of the process `of` if given."""
    inside = ["nsenter", "--target", str(of), "--net"] if of else []
    subprocess.run([*inside, "ip", *words], check=True, capture_output=True, text=True)


class Machine:
    """A node seen from outside: its folder, its network link, its processes."""

    def __init__(self, home: Path, number: str, name: str) -> None:
        self.name = name
        self._number = number
        self._folder = home / "local" / "instances" / name

    @property
    def state(self) -> dict[str, Any]:
        return dict(json.loads((self._folder / "state.json").read_text()))

    @property
    def pid(self) -> int:
        """The PID of its init."""
        return int(self.state["pid"])

    @property
    def disk(self) -> Path:
        """The machine's root directory, seen from outside."""
        return Path(f"/proc/{self.pid}/root")

    @property
    def is_on(self) -> bool:
        return bool(self.state["state"] != "ended")

    @property
    def agent_log(self) -> str:
        return (self._folder / "agent.log").read_text(errors="replace")

    def drop_to_controller(self) -> None:
        """Drop everything that this node sends."""
        self._neighbour(CONTROLLER, NOBODYS_MAC, "eth0", of=self.pid)

    def drop_from_controller(self) -> None:
        """Drop everything that the controller sends to this node."""
        self._neighbour(f"10.77.0.{self._number}", NOBODYS_MAC, "bridge0")

    def cut_off(self) -> None:
        self.drop_to_controller()
        self.drop_from_controller()

    def join(self) -> None:
        """Restore the network link."""
        if self.is_on:
            self._neighbour(CONTROLLER, CONTROLLER_MAC, "eth0", of=self.pid)
        self._neighbour(f"10.77.0.{self._number}", f"02:00:00:00:00:{self._number}", "bridge0")

    def signal(self, name: str = "go") -> None:
        """Make the file /tmp/NAME, for which the workload waits."""
        (self.disk / "tmp" / name).touch()

    def workload(self) -> list[psutil.Process]:
        """The processes of `run`, including those that detached themselves."""
        return [p for p in self.processes() if "PERDURE_RUN_DIR" in _environ(p)]

    def agent(self) -> psutil.Process:
        return next(p for p in self.processes() if p.ppid() == self.pid and "PERDURE_TOKEN" in _environ(p))

    def processes(self) -> list[psutil.Process]:
        try:
            inside = os.readlink(f"/proc/{self.pid}/ns/pid")
        except OSError:
            return []
        return [p for p in psutil.process_iter() if _namespace(p.pid) == inside]

    @staticmethod
    def _neighbour(address: str, mac: str, device: str, of: int | None = None) -> None:
        ip("neighbour", "replace", address, "lladdr", mac, "dev", device, "nud", "permanent", of=of)


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except (psutil.Error, OSError):
        return {}
