"""`perdure jobs logs`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from support.helpers.timing import scaled
from unit.cli.commands import RunPerdure, StartPerdure
from unit.sdk.contract_server import Controller


def test_logs__of_the_newest_job_by_name_and_task(perdure: RunPerdure, server: Controller) -> None:
    server.add("SUCCEEDED", name="a", printed=b"old\n")
    server.add("SUCCEEDED", "FAILED", name="b", printed=b"new\n")
    assert perdure("jobs", "logs").stdout == "new\n"
    assert perdure("jobs", "logs", "-n", "a").stdout == "old\n"
    assert perdure("jobs", "logs", "2").exit_code == 100
    assert perdure("jobs", "logs", "2", "b-0").exit_code == 0
    assert "task=0" in server.called("GET .*/logs.*")[-1][1]
    assert perdure("jobs", "logs", "2", "1").exit_code == 100
    result = perdure("jobs", "logs", "2", "c")
    assert result.exit_code == 2
    assert "choose from: 0 (b-0), 1 (b-1)" in result.stderr


def test_logs__without_following(perdure: RunPerdure, preempted_job: int) -> None:
    result = perdure("jobs", "logs", preempted_job, "--no-follow", "--tail", "2")
    assert result.exit_code == 101
    assert result.stdout == "two\nthree\n"


def test_logs__of_one_attempt(perdure: RunPerdure, server: Controller, preempted_job: int) -> None:
    assert perdure("jobs", "logs", preempted_job, "--attempt", "2", "--no-follow").exit_code == 101
    assert "attempt=2" in server.called("GET .*/logs.*")[-1][1]
    result = perdure("jobs", "logs", preempted_job, "--attempt", "3")
    assert (result.exit_code, result.stderr) == (102, f"Error: job {preempted_job} has no attempt 3: it has had 2\n")
    assert perdure("jobs", "logs", preempted_job, "--attempt", "1", "--controller").exit_code == 2


def test_logs__of_an_attempt_that_has_ended_are_followed_no_further(
    perdure: RunPerdure, server: Controller, preempted_job: int
) -> None:
    """The job goes on, and with it the log of all attempts."""
    assert perdure("jobs", "logs", preempted_job, "--attempt", "1").exit_code == 101
    assert "attempt=1" in server.called("GET .*/logs.*")[-1][1]


def test_logs__are_the_printed_bytes(in_process: StartPerdure, server: Controller) -> None:
    server.add("SUCCEEDED", printed=b"a\xffb\r\x1b[31mred\n")
    process = in_process("jobs", "logs")
    assert process.stdout.buffer.read() == b"a\xffb\r\x1b[31mred\n"


def test_logs__controller_events(
    in_process: StartPerdure, server: Controller, preempted_job: int, ended_entry: dict[str, Any]
) -> None:
    process = in_process("jobs", "logs", preempted_job, "--controller", TZ="UTC")
    assert process.stdout.readline() == "2026-11-21 01:02:03  job.submitted  SUBMITTED\n"
    line = process.stdout.readline()
    assert line.startswith("2026-11-21 01:04:33  [attempt 1.0]  node.notice  aws/us-east-1a spot  PREEMPTION_NOTICE")
    process.stdout.readline()
    server.timelines[preempted_job].append(ended_entry)
    server.end(preempted_job)
    assert process.stdout.readline() == "2026-11-21 01:07:00  job.ended  COMPLETED\n"
    assert process.wait(scaled(30)) == 0


def test_logs__sync_down_writes_files(
    perdure: RunPerdure, server: Controller, preempted_job: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    server.add("SUCCEEDED", "FAILED", name="pipe/line", printed=b"a\xffb\n")
    one, several = tmp_path / "perdure_logs/1-bert", tmp_path / "perdure_logs/2-pipe-line"
    result = perdure("jobs", "logs", preempted_job, "--sync-down")
    assert (result.exit_code, result.stdout) == (0, f"Logs of job 1: {one}\n")
    assert (one / "run.log").read_bytes() == b"one\ntwo\nthree\n"
    assert perdure("jobs", "logs", preempted_job, "-s", "--controller").exit_code == 0
    assert "job.submitted" in (one / "controller.log").read_text().splitlines()[0]
    assert perdure("jobs", "logs", "-s").stdout == f"Logs of job 2: {several}\n"
    assert {path.name: path.read_bytes() for path in several.iterdir()} == {
        "run-0.log": b"a\xffb\n",
        "run-1.log": b"a\xffb\n",
    }
    assert perdure("jobs", "logs", "9", "-s").exit_code == 102
    assert "leave out TASK, --attempt and --tail" in perdure("jobs", "logs", "1", "-s", "--tail", "3").stderr
    (tmp_path / "perdure_logs/3-x").write_text("")
    server.add("RUNNING", name="x")
    assert "Error: cannot write the logs: " in perdure("jobs", "logs", "3", "-s").stderr


def test_logs__ctrl_c_detaches(in_process: StartPerdure, preempted_job: int) -> None:
    process = in_process("jobs", "logs", preempted_job)
    assert process.stdout.readline() == "one\n"
    process.send_signal(signal.SIGINT)
    assert "job 1 keeps running" in process.communicate(timeout=scaled(30))[1]
    assert process.returncode == 101


def test_logs__of_a_job_without_attempts_say_why(perdure: RunPerdure, server: Controller) -> None:
    job = server.add("FAILED_PRECHECKS", message="the image names nothing")
    result = perdure("jobs", "logs", job, "--no-follow")
    assert (result.exit_code, result.stdout) == (100, "")
    assert "FAILED_PRECHECKS" in result.stderr
    assert "the image names nothing" in result.stderr
