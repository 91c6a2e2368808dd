from __future__ import annotations

import importlib.util
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

_AT = Path(__file__).parent.parent / "sdk_client" / "conftest.py"
_spec = importlib.util.spec_from_file_location("perdure_sdk_client_fixtures", _AT)
_fixtures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_fixtures)
_own_environment = _fixtures._own_environment
controller = _fixtures.controller
embedded = _fixtures.embedded

COMMAND = [sys.executable, "-m", "perdure.cli"]


@pytest.fixture
def named(controller, monkeypatch):
    """The controller, named by the environment, as it is for `perdure` and `in_process`."""
    monkeypatch.setenv("PERDURE_ENDPOINT", controller.url)
    monkeypatch.setenv("PERDURE_TOKEN", "user-token")
    return controller


@pytest.fixture
def perdure(named):
    """Runs the command line within this process; returns click's result (exit_code, stdout, stderr)."""
    from click.testing import CliRunner

    from perdure.cli.main import cli

    return lambda *words, **options: CliRunner().invoke(cli, list(map(str, words)), prog_name="perdure", **options)


@pytest.fixture
def in_process(named):
    """Starts `perdure …` as a process of its own, with pipes; ends it with the test."""
    started = []

    def start(*words, **environ):
        process = subprocess.Popen(
            [*COMMAND, *map(str, words)],
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


class Terminal:
    """A process on a pseudo-terminal."""

    def __init__(self, words, environ):
        self.fd, inner = pty.openpty()
        self.process = subprocess.Popen(words, env=environ, stdin=inner, stdout=inner, stderr=inner, close_fds=True)
        os.close(inner)
        self.text = ""

    def read_until(self, wanted, timeout_s=30.0):
        """Read until `wanted` has been printed `times`; None reads to the end."""
        give_up_at = time.monotonic() + timeout_s
        while wanted is None or wanted not in self.text:
            assert select.select([self.fd], [], [], max(0, give_up_at - time.monotonic()))[0], (wanted, self.text)
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # its end was closed
                data = b""
            self.text += data.decode()
            if not data:
                assert wanted is None, (wanted, self.text)
                break
        return self.text

    def write(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        """Read all the rest; returns the exit code."""
        self.read_until(None)
        return self.process.wait(timeout=30)


@pytest.fixture
def on_terminal(named):
    """Starts `perdure …` on a pseudo-terminal of 80 columns."""
    started = []

    def start(*words, **environ):
        sized = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24", **environ}
        started.append(Terminal([*COMMAND, *map(str, words)], sized))
        return started[-1]

    yield start
    for terminal in started:
        if terminal.process.poll() is None:
            terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.fd)
