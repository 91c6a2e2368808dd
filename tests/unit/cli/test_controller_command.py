"""`perdure controller`: only `start` starts one; what the embedded one looks like from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from perdure.sdk import endpoint


@pytest.fixture
def run(embedded):
    """Runs `perdure …` for the embedded controller; returns (exit code, stdout, stderr)."""
    _, environ = embedded

    def call(*words):
        done = subprocess.run(
            [sys.executable, "-m", "perdure.cli", *words],
            env=environ, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    return call


def pids(home):
    starts = home / "starts"
    return [int(pid) for pid in starts.read_text().split()] if starts.exists() else []


def test_status_stop_and_logs_start_nothing(run, embedded):
    home, _ = embedded
    assert run("controller", "status") == (
        1,
        "The controller is not running; it starts by itself when it is needed.\n",
        "",
    )
    assert run("controller", "stop") == (0, "The controller is not running.\n", "")
    assert run("controller", "logs")[0] == 1
    assert not home.exists()


def test_start_status_logs_stop(run, embedded):
    home, _ = embedded
    code, out, err = run("controller", "start")
    (pid,) = pids(home)
    assert (code, err) == (0, "")
    assert out.startswith("The controller runs at http://127.0.0.1:")
    assert f"(process {pid})" in out
    assert "runs already" in run("controller", "start")[1]
    code, out, _ = run("controller", "status")
    assert code == 0
    assert f"  process   {pid}\n" in out
    assert f"  home      {home}\n" in out
    assert "  jobs      none\n" in out
    assert run("controller", "logs", "--tail", "5")[1] == "controller line 1\ncontroller line 2\n"
    assert run("controller", "stop") == (0, "The controller is stopped; running jobs go on.\n", "")
    assert not endpoint.is_controller(pid)
    assert run("controller", "status")[0] == 1
    assert pids(home) == [pid]


def test_any_other_command_starts_it_and_finds_it_again_after_a_crash(run, embedded):
    home, _ = embedded
    assert run("jobs", "queue") == (0, "No in-progress managed jobs.\n", "")
    assert run("jobs", "queue")[0] == 0
    (pid,) = pids(home)
    os.kill(pid, signal.SIGKILL)
    assert run("jobs", "queue")[0] == 0
    assert len(pids(home)) == 2


def test_one_that_lives_but_does_not_answer_is_said_so_and_can_be_stopped(run, embedded):
    home, _ = embedded
    run("controller", "start")
    (pid,) = pids(home)
    os.kill(pid, signal.SIGSTOP)
    assert run("controller", "status") == (1, f"The controller (process {pid}) runs, but does not answer.\n", "")
    os.kill(pid, signal.SIGCONT)
    assert run("controller", "stop")[0] == 0


def test_its_last_words_are_shown_when_it_dies_at_its_start(run, embedded):
    home, _ = embedded
    home.mkdir()
    (home / "broken").touch()
    code, out, err = run("jobs", "queue")
    assert (code, out) == (1, "")
    assert "the database is of a newer version" in err
    assert "Traceback" not in err
    code, out, _ = run("controller", "logs")
    assert (code, out) == (1, "the database is of a newer version\n")


def test_one_that_runs_elsewhere(perdure, named, monkeypatch):
    result = perdure("controller", "start")
    assert result.exit_code == 0
    assert "runs already" in result.stdout
    result = perdure("controller", "stop")
    assert result.exit_code == 2
    assert not named.stopping.is_set(), "others may share it, so it asks"
    assert perdure("controller", "stop", "-y").exit_code == 0
    assert named.stopping.wait(20)
    monkeypatch.setenv("PERDURE_ENDPOINT", "http://127.0.0.1:1")
    result = perdure("controller", "start")
    assert result.exit_code == 1
    assert "start it there" in result.stderr


def test_another_version_is_mentioned(perdure, named):
    named.version = "9.9.9"
    assert "the controller is version 9.9.9" in perdure("controller", "status").stderr
