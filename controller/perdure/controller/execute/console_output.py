"""Puts what machines that never called have written to their console into the log of their attempt.

It is the only trace of why such a machine was paid for and did nothing, and it ends with the machine.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from perdure.controller.clouds.base.protocol import Cloud, HasConsole
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.logs.protocol import LogStore

log = structlog.get_logger(__name__)

MAX_CHARACTERS = 32 * 1024  # of one machine: the end of the console
MAX_MACHINES = 2  # of an attempt: those of a gang fail alike
READ_TIMEOUT_S = 10.0  # for all machines of an attempt
_MAX_ATTEMPTS = 100  # whose consoles are in memory

_MAX_READ = 4 * MAX_CHARACTERS  # what is looked at: much of a console may be escape sequences
# Bounded repetitions: the machine is a stranger's, and the daemon must not search long in what it has written.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]")


class CloudWithConsole(Cloud, HasConsole, Protocol):
    """A cloud that stores the console of its machines."""


@dataclass(frozen=True)
class ConsoleRecorder:
    """Safe to use from any thread. `endpoint`: what the machines should have called."""

    logs: LogStore
    on_log: Callable[[int], None]  # called with the id of a job whose log has grown
    endpoint: str
    #: What was read and is not added yet; lost with the daemon.
    _read_texts: dict[AttemptKey, dict[int, str]] = field(default_factory=dict)

    def read_consoles(self, cloud: Cloud, region: str, key: AttemptKey, machines: Collection[tuple[int, str]]) -> None:
        """Read the console of each machine, (rank, instance id), while it is there. Never raises: it only informs.

        Takes `READ_TIMEOUT_S` at most: the machines cost money until they are ended. Does nothing for a cloud without
        consoles.
        """
        if not isinstance(cloud, HasConsole):
            return
        readers = [
            threading.Thread(target=self._read, args=(cloud, region, key, rank, id), name="console", daemon=True)
            for rank, id in sorted(machines)[:MAX_MACHINES]
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(READ_TIMEOUT_S / len(readers))

    def add_to_logs(self, key: AttemptKey) -> None:
        """Add what was read to the empty logs of the attempt, whose machines are gone or stopped. Never raises.

        Not before: a machine may call after all, and sends its log from the beginning.
        """
        for rank, text in self._read_texts.pop(key, {}).items():
            try:
                if self.logs.size(key, rank) == 0:
                    self.logs.append(key, rank, 0, text.encode())
                    self.on_log(key[0])
            except Exception as error:  # noqa: BLE001 - the machine is gone in any case
                log.warning("console.not_recorded", job=key[0], rank=rank, error=str(error))

    def _read(self, cloud: CloudWithConsole, region: str, key: AttemptKey, rank: int, id: str) -> None:
        text = self._text(cloud, region, id)
        while len(self._read_texts) >= _MAX_ATTEMPTS and key not in self._read_texts:
            self._read_texts.pop(next(iter(self._read_texts)), None)
        self._read_texts.setdefault(key, {})[rank] = text

    def _text(self, cloud: CloudWithConsole, region: str, id: str) -> str:
        begin = f"[perdure: {id} never called {self.endpoint}."
        try:
            output = readable(cloud.console_output(region, id))
        except Exception as error:  # noqa: BLE001 - the cloud classifies its own errors
            return f"{begin} Its console cannot be read: {cloud.classify(error).message}]\n"
        if not output:
            return f"{begin} {cloud.name} has no output of its console.]\n"
        return f"{begin} Its console:]\n{output}\n[perdure: the end of the console of {id}]\n"


def readable(output: str) -> str:
    """The end of a console's output without escape sequences and control characters, from the start of a line on."""
    lines = output[-_MAX_READ:].replace("\r\n", "\n").replace("\r", "\n")
    text = _CONTROL.sub("", _ESCAPE.sub("", lines)).strip()
    if len(text) <= MAX_CHARACTERS:
        return text
    return text[-MAX_CHARACTERS:].partition("\n")[2] or text[-MAX_CHARACTERS:]
