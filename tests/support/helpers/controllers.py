"""A real daemon in its own home, used through the command line and the API."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import perdure.sdk as perdure
from perdure.sdk.connection.client import Client
from perdure.sdk.connection.discovery import running
from support.helpers.timing import scaled, wait_until

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 90.0
Value = TypeVar("Value")


@dataclass(frozen=True)
class Controller:
    """`client` calls its API; `perdure` runs a command against it, from the root of the checkout.

    `environ`: added to the environment of its daemon and commands. `program`: runs the commands. `timeout_s`: the limit
    of a command and of a wait, on an idle machine.
    """

    home: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    program: Sequence[str] = (sys.executable, "-m", "perdure.cli")
    timeout_s: float = TIMEOUT_S

    @property
    def client(self) -> Client:
        endpoint = running(self.home)
        assert endpoint is not None, "the controller does not run"
        return Client(endpoint)

    def perdure(self, *words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
        done = subprocess.run(
            [*self.program, *map(str, words)],
            cwd=ROOT,
            env={**environ, **self.environ, "PERDURE_HOME": str(self.home)},
            capture_output=True,
            text=True,
            timeout=scaled(self.timeout_s),
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
        return done

    def job(self, job_id: int) -> dict[str, Any]:
        return dict(perdure.jobs.get(job_id, client=self.client))

    def log(self, job_id: int) -> str:
        """The log as `jobs logs` prints it. Its exit code, which depends on the job's status, is ignored."""
        return self.perdure("jobs", "logs", job_id, "--no-follow", "--tail", 0, check=False).stdout

    def errors(self) -> list[str]:
        """The lines of the daemon's log about exceptions, which it holds as JSON, and about errors."""
        lines = [json.loads(line) for line in (self.home / "controller.log").read_text().splitlines()]
        return [json.dumps(line)[:2000] for line in lines if "exception" in line or line.get("level") == "error"]

    def until(self, condition: Callable[[], Value | None], what: str, timeout_s: float = TIMEOUT_S) -> Value:
        """Wait for the first true value of `condition`, and return it."""
        return wait_until(condition, what, timeout_s, poll_s=0.1)


@contextlib.contextmanager
def running_controller(home: Path, **more: Any) -> Iterator[Controller]:
    """A controller on `home`, whose config.yaml is written; in the end nothing of it is left. `more`: its fields."""
    one = Controller(home, **more)
    one.perdure("controller", "start")
    try:
        yield one
    finally:
        with contextlib.suppress(AssertionError):
            one.perdure("jobs", "cancel", "--all-users", "--yes", "--no-graceful")
            one.until(lambda: not list(home.glob("local/instances/*/machine")), "the end of every machine")
        one.perdure("controller", "stop")


ControllerOn = Callable[..., contextlib.AbstractContextManager[Controller]]
"""`running_controller`, or a function like it."""
