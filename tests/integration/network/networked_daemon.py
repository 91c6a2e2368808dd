"""A real daemon whose machines have a network namespace each."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from integration.network.machines import Machine
from perdure.sdk.connection.client import Client
from perdure.sdk.connection.discovery import running
from support.helpers.timing import scaled, wait_until

HERE = Path(__file__).parent
TIMEOUT_S = 60.0

Value = TypeVar("Value")


class Eventually(Protocol):
    """`until`, or a function like it."""

    def __call__(self, condition: Callable[[], Value | None], what: str, timeout_s: float = TIMEOUT_S) -> Value: ...


def until(condition: Callable[[], Value | None], what: str, timeout_s: float = TIMEOUT_S) -> Value:
    """Wait for the first true value of `condition`, and return it."""
    return wait_until(condition, what, timeout_s, poll_s=0.02)


class Rig:
    """A daemon that can be frozen, killed and started again, and its machines."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._folder = home / "networks"
        self._daemon: subprocess.Popen[bytes] | None = None
        self._folder.mkdir(parents=True)
        (home / "forgotten").mkdir()

    def start(self) -> None:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
        with open(self.home / "daemon.out", "ab") as out:
            command = [sys.executable, str(HERE / "rig.py"), str(self.home), str(self._folder)]
            self._daemon = subprocess.Popen(command, env=environ, stdout=out, stderr=out, start_new_session=True)
        until(self._answers, "the daemon's start")

    def _answers(self) -> bool:
        assert self._daemon is not None
        assert self._daemon.poll() is None, (self.home / "daemon.out").read_text()
        return (endpoint := running(self.home)) is not None and endpoint.pid == self._daemon.pid

    @property
    def client(self) -> Client:
        endpoint = running(self.home)
        assert endpoint is not None, "the controller does not run"
        return Client(endpoint)

    @property
    def pid(self) -> int:
        assert self._daemon is not None
        return self._daemon.pid

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def stop(self, number: int = signal.SIGTERM) -> None:
        assert self._daemon is not None
        self._daemon.send_signal(signal.SIGCONT)
        self._daemon.send_signal(number)
        self._daemon.wait(scaled(TIMEOUT_S))

    def launch(self, run: str, **task: Any) -> int:
        asked = {"name": "net", "run": run, "resources": {"use_spot": True}, **task}
        return int(self.client.submit("net", [asked], user="", key=f"net-{time.monotonic_ns()}")["job_id"])

    def job(self, job: int) -> dict[str, Any]:
        return dict(self.client.job(job))

    def until_status(self, job: int, *statuses: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        def seen() -> dict[str, Any] | None:
            detail = self.job(job)
            return detail if detail["status"] in statuses else None

        return until(seen, f"job {job} to be {statuses}", timeout_s)

    def log(self, job: int, generation: int = 1) -> bytes:
        """The stored log of a node."""
        path = self.home / "logs" / str(job) / "0" / str(generation) / "0.log"
        return path.read_bytes() if path.exists() else b""

    def machine(self, job: int, generation: int = 1, rank: int = 0) -> Machine:
        """Wait for the machine of a node."""

        def machine_name() -> str | None:
            attempts = [a for a in self.job(job)["attempts"] if a["generation"] == generation]
            return attempts[0]["nodes"][rank]["instance_id"] if attempts else None

        name = until(machine_name, f"a machine for job {job}")
        path = until(
            lambda: next((p for p in self._folder.glob("*/instance") if p.read_text().strip() == name), None),
            f"the network of {name}",
        )
        return Machine(self.home, path.parent.name, name)

    def forget(self, machine: Machine) -> None:
        """Make the cloud forget this machine, which continues to run."""
        (self.home / "forgotten" / machine.name).touch()

    def machines(self) -> list[Machine]:
        known = [(p.parent.name, p.read_text().strip()) for p in self._folder.glob("*/instance")]
        return [Machine(self.home, number, name) for number, name in known]

    def end(self) -> None:
        """End everything."""
        self.stop(signal.SIGKILL)
        for machine in self.machines():
            with contextlib.suppress(OSError, KeyError):
                if machine.is_on:
                    os.kill(machine.pid, signal.SIGKILL)
        until(lambda: not any(m.is_on for m in self.machines()), "the end of every machine")
