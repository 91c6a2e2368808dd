"""Keeps a daemon running as a service manager does: one that dies is started again. It dies where it is told to."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import warm
from perdure.controller import crashpoints
from perdure.sdk.client import Client, ConnectionLost
from perdure.sdk.endpoint import Endpoint

Answer = TypeVar("Answer")
PATIENCE_S = 90.0
KILL = "kill"


class Keeper:
    """A daemon on `home`, with `environ` besides the tests' own environment.

    `plan`: where it is to die in each of its lives, as PERDURE_CRASH_AT has it, or KILL (when `kill` is called). Its
    last life, after the plan, is to last: `failure` says if it does not.
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
        """Whether every death of the plan was died, and a daemon is alive after them."""
        return len(self.deaths) == len(self._plan)

    @property
    def is_to_be_killed(self) -> bool:
        return self._due == KILL

    def kill(self) -> None:
        """Die now: what is due in the plan must be KILL."""
        deaths = len(self.deaths)
        self._process.kill()
        self.until(lambda: len(self.deaths) > deaths, "the daemon's death")

    def stop(self) -> None:
        self._is_stopping = True
        self._process.terminate()
        self._thread.join(30)
        self._process.kill()
        self._process.wait()

    @property
    def client(self) -> Client:
        """A client that starts no daemon of its own, and says at once when it finds none."""
        try:
            url = json.loads((self.home / "controller.json").read_text())["endpoint"]
            return Client(Endpoint(url, (self.home / "token").read_text().strip()))
        except FileNotFoundError as missing:
            raise ConnectionLost(str(missing)) from missing

    def ask(self, question: Callable[[Client], Answer]) -> Answer:
        """The answer of whichever daemon lives to give it."""
        answers: list[Answer] = []

        def is_answered() -> bool:
            try:
                answers.append(question(self.client))
            except ConnectionLost:
                return False
            return True

        self.until(is_answered, "an answer")
        return answers[0]

    def until(self, condition: Callable[[], Any], what: str | Callable[[], str]) -> Any:
        """The first true answer of `condition`."""
        give_up_at = time.monotonic() + PATIENCE_S
        while not (answer := condition()):
            assert not self.failure, self.failure
            if time.monotonic() > give_up_at:
                said = what if isinstance(what, str) else what()
                raise AssertionError(f"in vain: {said}; died so far: {self.deaths} of {self._plan}")
            Event().wait(0.05)
        return answer

    @property
    def _due(self) -> str:
        return "" if self.is_done else self._plan[len(self.deaths)]

    def _start(self) -> warm.Daemon:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")} | dict(self._environ)
        if self._due not in ("", KILL):
            environ[crashpoints.VARIABLE] = self._due
        return warm.start(self.home, environ=environ, stderr=self._stderr)

    def _keep(self) -> None:
        while True:
            code = self._process.wait()
            if self._is_stopping:
                return
            lines = self._stderr.read_text().splitlines()
            point, _, nth = self._due.partition(":")
            says = f"crash point {point}:{nth or 1} is reached"
            if code != -signal.SIGKILL or (self._due != KILL and lines[-1:] != [says]):
                self.failure = f"the daemon ended with {code} where {self._due or 'nothing'} was due: {lines[-20:]}"
                return
            self.deaths.append(self._due)
            self._process = self._start()
