"""A controller of a test's own: a real daemon in a home of its own, used through the command line and the API."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import perdure.sdk as perdure
from perdure.sdk.client import Client
from perdure.sdk.endpoint import running

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 90.0


@dataclass(frozen=True)
class Controller:
    """`client` speaks with its API; `perdure` runs a command against it, from the root of the checkout.

    `environ`: what its daemon and its commands have in their environment besides the tests' own. `program`: what runs
    the commands.
    """

    home: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    program: Sequence[str] = (sys.executable, "-m", "perdure.cli")

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
            timeout=PATIENCE_S,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
        return done

    def job(self, job_id: int) -> dict[str, Any]:
        return dict(perdure.jobs.get(job_id, client=self.client))

    def log(self, job_id: int) -> str:
        """As `jobs logs` shows it, which answers for the status by its exit code."""
        return self.perdure("jobs", "logs", job_id, "--no-follow", "--tail", 0, check=False).stdout

    def until(self, condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
        """The first true answer of `condition`."""
        give_up_at = time.monotonic() + patience_s
        while not (answer := condition()):
            assert time.monotonic() < give_up_at, f"in vain: {what}"
            Event().wait(0.1)
        return answer


@contextlib.contextmanager
def running_controller(home: Path, **more: Any) -> Iterator[Controller]:
    """A controller on `home`, whose config.yaml is written; in the end nothing of it is left. `more`: its fields."""
    one = Controller(home, **more)
    one.perdure("controller", "start")
    try:
        yield one
    finally:
        with contextlib.suppress(AssertionError):
            one.perdure("jobs", "cancel", "--all", "--yes", "--no-graceful")
            one.until(lambda: not list(home.glob("local/instances/*/machine")), "the end of every machine")
        one.perdure("controller", "stop")
