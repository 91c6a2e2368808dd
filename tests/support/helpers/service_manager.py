"""Keeps a daemon running as a service manager does. Each life of the daemon ends at a planned failpoint."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from perdure.controller.runtime import failpoints
from perdure.sdk.connection.client import Client, ConnectionLost
from perdure.sdk.connection.endpoint import Endpoint
from support.helpers import daemon_forkserver
from support.helpers.timing import scaled, wait_until

Answer = TypeVar("Answer")
TIMEOUT_S = 90.0
KILL = "kill"


class ServiceManager:
    """A daemon on `home`, with `environ` in addition to the tests' environment.

    `plan`: for each of its lives, the failpoint at which it dies, as in PERDURE_FAILPOINT, or KILL (when `kill` is
    called). The life after the plan must last; otherwise `failure` describes its end.
    """

    def __init__(self, home: Path, plan: Sequence[str], *, environ: Mapping[str, str]) -> None:
        self.home = home
        self.deaths: list[str] = []
        self.failure = ""
        self._plan = list(plan)
        self._environ = environ
        self._is_stopping = False
        self._stderr = home / "daemon.stderr"
        self._process = self._start()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether every planned death happened; the daemon that runs then is to stay."""
        return len(self.deaths) == len(self._plan)

    @property
    def must_be_killed(self) -> bool:
        return self._due == KILL

    def kill(self) -> None:
        """Kill the daemon now; the next entry of the plan must be KILL."""
        deaths = len(self.deaths)
        self._process.kill()
        self.until(lambda: len(self.deaths) > deaths, "the daemon's death")

    def stop(self) -> None:
        self._is_stopping = True
        self._process.terminate()
        self._thread.join(scaled(30))
        self._process.kill()
        self._process.wait()

    @property
    def client(self) -> Client:
        """A client that starts no daemon. Raises ConnectionLost if none runs."""
        try:
            url = json.loads((self.home / "controller.json").read_text())["endpoint"]
            return Client(Endpoint(url, (self.home / "token").read_text().strip()))
        except FileNotFoundError as missing:
            raise ConnectionLost(str(missing)) from missing

    def ask(self, question: Callable[[Client], Answer]) -> Answer:
        """Repeat a request until a live daemon answers it; return the answer."""
        answers: list[Answer] = []

        def is_answered() -> bool:
            try:
                answers.append(question(self.client))
            except ConnectionLost:
                return False
            return True

        self.until(is_answered, "an answer")
        return answers[0]

    def until(self, condition: Callable[[], Answer | None], what: str | Callable[[], str]) -> Answer:
        """Wait for the first true value of `condition`, and return it. Fails at once if the daemon failed."""

        def value() -> Answer | None:
            assert not self.failure, self.failure
            return condition()

        def description() -> str:
            return f"{what if isinstance(what, str) else what()}; died so far: {self.deaths} of {self._plan}"

        return wait_until(value, description, TIMEOUT_S)

    @property
    def _due(self) -> str:
        return "" if self.is_done else self._plan[len(self.deaths)]

    def _start(self) -> daemon_forkserver.Daemon:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")} | dict(self._environ)
        if self._due not in ("", KILL):
            environ[failpoints.VARIABLE] = self._due
        return daemon_forkserver.start(self.home, environ=environ, stderr=self._stderr)

    def _keep(self) -> None:
        while True:
            code = self._process.wait()
            if self._is_stopping:
                return
            lines = self._stderr.read_text().splitlines()
            point, _, nth = self._due.partition(":")
            says = f"failpoint {point}:{nth or 1} reached"
            if code != -signal.SIGKILL or (self._due != KILL and lines[-1:] != [says]):
                self.failure = f"the daemon ended with {code} where {self._due or 'nothing'} was due: {lines[-20:]}"
                return
            self.deaths.append(self._due)
            self._process = self._start()
