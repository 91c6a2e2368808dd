"""`perdure jobs logs`."""

from __future__ import annotations

import signal
from typing import Any

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


def test_logs__ctrl_c_detaches(in_process: StartPerdure, preempted_job: int) -> None:
    process = in_process("jobs", "logs", preempted_job)
    assert process.stdout.readline() == "one\n"
    process.send_signal(signal.SIGINT)
    assert "job 1 keeps running" in process.communicate(timeout=scaled(30))[1]
    assert process.returncode == 101
