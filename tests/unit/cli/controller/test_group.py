"""`perdure controller start|stop|status|logs`, with an embedded controller and with one elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.sdk import serve
from perdure.sdk.connection import discovery, endpoint
from support.helpers.timing import scaled
from unit.cli.commands import RunPerdure, StartOnTerminal
from unit.sdk.contract_server import Controller

Run = Callable[..., tuple[int, str, str]]  # (*words) → (exit code, stdout, stderr)


@pytest.fixture
def run(embedded: tuple[Path, dict[str, str]]) -> Run:
    """A function that runs `perdure …` for the embedded controller; returns (exit code, stdout, stderr)."""
    _, environ = embedded

    def call(*words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "perdure.cli", *words],
            env=environ, capture_output=True, text=True, timeout=scaled(60), check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    return call


def pids(home: Path) -> list[int]:
    starts = home / "starts"
    return [int(pid) for pid in starts.read_text().split()] if starts.exists() else []


def test_status_stop_and_logs__do_not_start_a_controller(run: Run, embedded: tuple[Path, dict[str, str]]) -> None:
    home, _ = embedded
    assert run("controller", "status") == (
        1,
        "The controller is not running; it starts on first use.\n",
        "",
    )
    assert run("controller", "stop") == (0, "The controller is not running.\n", "")
    assert run("controller", "logs")[0] == 1
    assert not home.exists()


def test_embedded_controller__starts_reports_and_stops(run: Run, embedded: tuple[Path, dict[str, str]]) -> None:
    home, _ = embedded
    code, out, err = run("controller", "start")
    (pid,) = pids(home)
    assert (code, err) == (0, "")
    assert out.startswith("The controller is running at http://127.0.0.1:")
    assert f"(process {pid})" in out
    assert "already running" in run("controller", "start")[1]
    code, out, _ = run("controller", "status")
    assert code == 0
    assert f"  process   {pid}\n" in out
    assert f"  home      {home}\n" in out
    assert "  jobs      none\n" in out
    assert run("controller", "logs", "--tail", "5")[1] == "controller line 1\ncontroller line 2\n"
    assert run("controller", "stop") == (0, "The controller is stopped; running jobs continue.\n", "")
    assert not discovery.is_controller(pid)
    assert run("controller", "status")[0] == 1
    assert pids(home) == [pid]


def test_other_commands__start_the_controller_and_restart_it_after_a_crash(
    run: Run, embedded: tuple[Path, dict[str, str]]
) -> None:
    home, _ = embedded
    assert run("jobs", "queue") == (0, "No in-progress managed jobs.\n", "")
    assert run("jobs", "queue")[0] == 0
    (pid,) = pids(home)
    os.kill(pid, signal.SIGKILL)
    assert run("jobs", "queue")[0] == 0
    assert len(pids(home)) == 2


def test_status__reports_a_controller_that_does_not_answer(run: Run, embedded: tuple[Path, dict[str, str]]) -> None:
    home, _ = embedded
    run("controller", "start")
    (pid,) = pids(home)
    os.kill(pid, signal.SIGSTOP)
    assert run("controller", "status") == (1, f"The controller (process {pid}) is running, but does not answer.\n", "")
    os.kill(pid, signal.SIGCONT)
    assert run("controller", "stop")[0] == 0


def test_failed_start__shows_the_stderr_output(run: Run, embedded: tuple[Path, dict[str, str]]) -> None:
    home, _ = embedded
    home.mkdir(mode=0o700)
    (home / "broken").touch()
    code, out, err = run("jobs", "queue")
    assert (code, out) == (1, "")
    assert "the database is of a newer version" in err
    assert "Traceback" not in err
    code, out, _ = run("controller", "logs")
    assert (code, out) == (1, "the database is of a newer version\n")


def test_remote_controller__is_stopped_only_after_confirmation(
    perdure: RunPerdure, server: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = perdure("controller", "start")
    assert result.exit_code == 0
    assert "already running" in result.stdout
    result = perdure("controller", "stop")
    assert result.exit_code == 2
    assert not server.stopping.is_set(), "others may share it, so it asks"
    assert perdure("controller", "stop", "-y").exit_code == 0
    assert server.stopping.wait(scaled(20))
    monkeypatch.setenv("PERDURE_ENDPOINT", "http://127.0.0.1:1")
    result = perdure("controller", "start")
    assert result.exit_code == 1
    assert "start it where it runs" in result.stderr


def test_stop__names_the_services_that_do_not_answer_meanwhile(
    perdure: RunPerdure, server: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "status", lambda **_options: [{"name": "chat"}, {"name": "model"}])
    result = perdure("controller", "stop", "-y")
    assert server.stopping.wait(scaled(20))
    assert "the endpoints of services refuse connections: chat, model.\n" in result.stdout


def test_status__warns_of_another_version(perdure: RunPerdure, server: Controller) -> None:
    server.version = "9.9.9"
    assert "the controller is version 9.9.9" in perdure("controller", "status").stderr


def test_status__warns_of_a_configuration_that_was_not_read(perdure: RunPerdure, server: Controller) -> None:
    assert "config.yaml was changed" not in perdure("controller", "status").output
    server.config_changed = True
    assert "config.yaml was changed" in perdure("controller", "status").stderr


def test_up__asks_before_it_buys_a_machine(perdure: RunPerdure, on_terminal: StartOnTerminal) -> None:
    result = perdure("controller", "up", "--infra", "nowhere")
    assert result.exit_code == 2
    assert "add -y to skip confirmation" in result.stderr
    terminal = on_terminal("controller", "up", "--infra", "nowhere")
    terminal.read_until("Create a controller's machine in nowhere, which is billed until `down`? [y/N]")
    terminal.write("\n")
    assert terminal.end() == 1
    assert "Nothing was changed." in terminal.text


def test_status__says_that_the_controller_does_not_keep_up(perdure: RunPerdure, server: Controller) -> None:
    assert "health" not in perdure("controller", "status").stdout
    server.behind = {"overdue": "a timer has been due for 70 s", "rejected_frames": 12, "set_aside": 0}
    status = perdure("controller", "status").stdout
    assert "it does not keep up: a timer has been due for 70 s" in status
    assert "12 invalid frames of nodes" in status


def test_status__says_that_the_disk_is_full(
    perdure: RunPerdure, server: Controller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    room = os.statvfs(tmp_path)
    full = os.statvfs_result((*room[:4], 10, *room[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    server.home, own = tmp_path / "elsewhere", endpoint.home_dir()
    assert "the disk is full" not in perdure("controller", "status").stdout, "it is on another computer"
    server.home = own
    own.mkdir(exist_ok=True)
    assert "the disk is full (" in perdure("controller", "status").stdout


def test_status__names_unknown_machines_and_backups(perdure: RunPerdure, server: Controller) -> None:
    assert "does not know" not in perdure("controller", "status").stdout
    machines = [("aws", "i-1", 7), ("", "", 8)]
    server.behind = {
        "unknown_machines": [
            {"cloud": cloud, "instance": instance, "job_id": job, "task": 0, "generation": 1}
            for cloud, instance, job in machines
        ],
        "backup": {"to": "s3://b/p", "last": None, "error": "there is no bucket b"},
    }
    status = perdure("controller", "status").stdout
    assert "machines of jobs that the database does not know: i-1 (aws) of job 7, one of job 8" in status
    assert "to s3://b/p, the last one: none yet; the newest attempt failed: there is no bucket b" in status


def test_backup_and_restore__of_a_controller_elsewhere_are_refused(perdure: RunPerdure, server: Controller) -> None:
    for words in (("backup", "/tmp/x"), ("restore", "/tmp/x")):
        result = perdure("controller", *words)
        assert result.exit_code == 1
        assert "does not run on this computer" in result.stderr


def test_accept_database__needs_a_stopped_controller(run: Run, embedded: tuple[Path, dict[str, str]]) -> None:
    run("controller", "start")
    code, _, err = run("controller", "accept-database", "-y")
    assert code == 1
    assert "stop it first: perdure controller stop" in err
    assert run("controller", "stop")[0] == 0
