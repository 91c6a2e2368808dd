"""The contract server of the SDK's tests, and functions that run `perdure` with it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from unit.cli.commands import COMMAND, RunPerdure, StartOnTerminal, StartPerdure, Terminal
from unit.sdk.conftest import _own_environment, controller, embedded  # noqa: F401 (fixtures)
from unit.sdk.contract_server import Controller


@pytest.fixture
def server(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> Controller:  # noqa: F811
    """The contract server, to which PERDURE_ENDPOINT and PERDURE_TOKEN point."""
    monkeypatch.setenv("PERDURE_ENDPOINT", controller.url)
    monkeypatch.setenv("PERDURE_TOKEN", "user-token")
    return controller


@pytest.fixture
def perdure(server: Controller) -> RunPerdure:
    """A function that runs `perdure …` within this process; returns click's result (exit_code, stdout, stderr)."""
    from click.testing import CliRunner

    from perdure.cli.main import cli

    return lambda *words, **options: CliRunner().invoke(cli, list(map(str, words)), prog_name="perdure", **options)


@pytest.fixture
def in_process(server: Controller) -> Iterator[StartPerdure]:
    """A function that starts `perdure …` as a process with pipes; the process is killed when the test ends."""
    started = []

    def start(*words: object, **environ: str) -> subprocess.Popen[str]:
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


@pytest.fixture
def on_terminal(server: Controller) -> Iterator[StartOnTerminal]:
    """A function that starts `perdure …` on a pseudo-terminal of 80 columns."""
    started = []

    def start(*words: object, **environ: str) -> Terminal:
        sized = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24", **environ}
        started.append(Terminal([*COMMAND, *map(str, words)], sized))
        return started[-1]

    yield start
    for terminal in started:
        if terminal.process.poll() is None:
            terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.fd)
