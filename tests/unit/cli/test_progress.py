"""What moves on a terminal while a command takes its time."""

from __future__ import annotations

import re

from perdure.cli import progress


def test_files_and_a_busy_controller_are_waited_for_visibly(named, on_terminal, tmp_path) -> None:
    named.busy = 18  # it is asked again every tenth of a second
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "data").write_bytes(bytes(range(256)) * 4000)
    task = tmp_path / "task.yaml"
    task.write_text(f"workdir: {tmp_path / 'work'}\nrun: 'true'\n")
    terminal = on_terminal("jobs", "launch", "-d", "-y", task)
    assert terminal.end() == 0, terminal.text
    assert re.search(r"Uploading  \[#+\]  100%", terminal.text)
    assert re.search(r"Submitting the job  \[ *### *\]  [1-9]\d* s", terminal.text)
    assert named.busy == 0
    last = terminal.text.rsplit("\r\x1b[K", 1)[1]
    assert last.lstrip().startswith("Job 1 "), "the bar is gone"


def test_nothing_moves_where_nobody_watches(named, in_process, tmp_path) -> None:
    named.busy = 13
    process = in_process("jobs", "launch", "-d", "-y", "--", "true")
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert named.busy == 0
    assert "\x1b" not in out + err
    assert "Submitting" not in out + err


def test_what_is_done_at_once_shows_nothing(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress.working("Reading"):
        pass
    assert capsys.readouterr().err == ""
