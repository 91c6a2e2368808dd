"""How the tests run `perdure`: within this process, with pipes, and on a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

from click.testing import Result

from support.helpers.timing import scaled

COMMAND = [sys.executable, "-m", "perdure.cli"]


class RunPerdure(Protocol):
    """Runs `perdure …` within this process. The options are those of click's `CliRunner.invoke`."""

    def __call__(self, *words: object, **options: Any) -> Result: ...


class StartPerdure(Protocol):
    """Starts `perdure …` as a process with pipes."""

    def __call__(self, *words: object, **environ: str) -> subprocess.Popen[str]: ...


class Terminal:
    """A process on a pseudo-terminal."""

    def __init__(self, words: Sequence[str], environ: dict[str, str]) -> None:
        self.fd, inner = pty.openpty()
        self.process = subprocess.Popen(words, env=environ, stdin=inner, stdout=inner, stderr=inner, close_fds=True)
        os.close(inner)
        self.text = ""

    def read_until(self, wanted: str | None, timeout_s: float = 30.0) -> str:
        """Read until `wanted` has been printed; None reads to the end."""
        deadline = time.monotonic() + timeout_s
        while wanted is None or wanted not in self.text:
            assert select.select([self.fd], [], [], max(0, deadline - time.monotonic()))[0], (wanted, self.text)
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # the other end was closed
                data = b""
            self.text += data.decode()
            if not data:
                assert wanted is None, (wanted, self.text)
                break
        return self.text

    def write(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def end(self) -> int:
        """Read all remaining output; returns the exit code."""
        self.read_until(None)
        return self.process.wait(timeout=scaled(30))


class StartOnTerminal(Protocol):
    """Starts `perdure …` on a pseudo-terminal."""

    def __call__(self, *words: object, **environ: str) -> Terminal: ...
