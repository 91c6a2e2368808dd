"""Progress bars and animations on a terminal."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from perdure.cli.output import progress
from support.helpers.timing import scaled, wait_until
from unit.cli.commands import StartOnTerminal, StartPerdure
from unit.sdk.contract_server import Controller


def test_progress__is_shown_for_uploads_and_a_busy_controller(
    server: Controller, on_terminal: StartOnTerminal, tmp_path: Path
) -> None:
    server.busy = 18  # the client retries every tenth of a second
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "data").write_bytes(bytes(range(256)) * 4000)
    task = tmp_path / "task.yaml"
    task.write_text(f"workdir: {tmp_path / 'work'}\nrun: 'true'\n")
    terminal = on_terminal("jobs", "launch", "-d", "-y", task)
    assert terminal.end() == 0, terminal.text
    assert re.search(r"Uploading  \[#+\]  100%", terminal.text)
    assert re.search(r"Submitting the job  \[ *### *\]  [1-9]\d* s", terminal.text)
    assert server.busy == 0
    last = terminal.text.rsplit("\r\x1b[K", 1)[1]
    assert last.lstrip().startswith("Job 1 "), "the bar is gone"


def test_progress__is_hidden_without_a_terminal(server: Controller, in_process: StartPerdure, tmp_path: Path) -> None:
    server.busy = 13
    process = in_process("jobs", "launch", "-d", "-y", "--", "true")
    out, err = process.communicate(timeout=scaled(30))
    assert process.returncode == 0, err
    assert server.busy == 0
    assert "\x1b" not in out + err
    assert "Submitting" not in out + err


def test_spinner__stays_hidden_for_a_short_block(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress.spinner("Reading"):
        pass
    assert capsys.readouterr().err == ""


def test_spinner__shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.spinner("Packing files", lambda: "7.0 MB read"):
        wait_until(
            lambda: re.search(r"Packing files  \[.*\]  \d+ s  7.0 MB read", terminal.getvalue()), "the animation"
        )
    assert terminal.getvalue().endswith("\r\x1b[K")
