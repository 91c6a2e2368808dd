"""`perdure jobs show`."""

from __future__ import annotations

import json
import re

import pytest

from unit.cli.commands import RunPerdure, StartOnTerminal
from unit.cli.jobs.conftest import ATTEMPT
from unit.sdk.contract_server import Controller


def test_show__lists_attempts_and_timeline(perdure: RunPerdure, preempted_job: int) -> None:
    result = perdure("jobs", "show", preempted_job, env={"COLUMNS": "160", "TZ": "UTC"})
    assert result.exit_code == 0, result.output
    out = result.stdout
    assert out.startswith("Job 1 (bert): RUNNING\n")
    assert "  submitted    2026-11-21 01:02:03 UTC (57m ago) by ada\n" in out
    assert "\nAttempts (times in UTC)\n" in out
    assert "\nTimeline (times in UTC)\n" in out
    assert "  cost         $0.42; on-demand: $1.40, 70% saved\n" in out
    assert "  task id      sky-managed-2026-11-21-01-02-03-000004_bert_1-0\n" in out
    first = next(line for line in out.splitlines() if "us-east-1a spot  p3.2xlarge" in line)
    assert first.split()[-3:] == ["GONE", "PREEMPTION_NOTICE", "0:ended=143"]
    assert "1m" in first.split(), "ready a minute after the request"
    assert "2m" in first.split(), "ran for two minutes"
    notice = next(line for line in out.splitlines() if "node.notice" in line)
    assert notice.split()[:6] == ["+2m", "30s", "2026-11-21", "01:04:33", "1.0", "node.notice"]
    assert notice.endswith("aws/us-east-1a spot  PREEMPTION_NOTICE: the cloud takes the machine at 01:06:33")


def test_show__as_json(perdure: RunPerdure, preempted_job: int, server: Controller) -> None:
    job = json.loads(perdure("jobs", "show", preempted_job, "-o", "json").stdout)
    assert job["attempts"] == server.attempts[preempted_job]
    assert job["timeline"] == server.timelines[preempted_job]


def test_show__lists_each_task_of_a_pipeline(perdure: RunPerdure, server: Controller) -> None:
    server.add("SUCCEEDED", "FAILED", "CANCELLED", name="p", message="`run` exited with 3", exit_code=3)
    out = perdure("jobs", "show", 1).stdout
    assert out.startswith("Job 1 (p): FAILED\n")
    assert "Task 1 (p-1): FAILED\n  reason       `run` exited with 3\n  exit code    3\n" in out
    assert "Task 2 (p-2): CANCELLED\n" in out


def test_show__durations_of_a_pipeline_do_not_overlap(perdure: RunPerdure, server: Controller) -> None:
    server.add("SUCCEEDED", "RUNNING", "PENDING", name="p")
    first, _, last = server.jobs[1]
    first |= {"ended_at": "2026-11-21T01:06:03.000004Z", "total_duration_s": 240.0}
    last |= {"started_at": None, "generation": 0}
    out = perdure("jobs", "show", 1).stdout
    assert re.findall(r"  duration     (.*), of which", out) == ["4m", "4m 20s"]


@pytest.mark.parametrize("words", [["show", "9"], ["logs", "9"], ["logs"], ["logs", "-n", "nobody"], ["preempt", "9"]])
def test_unknown_job__exits_with_102(perdure: RunPerdure, server: Controller, words: list[str]) -> None:
    result = perdure("jobs", *words)
    assert result.exit_code == 102
    assert "there " in result.stderr


@pytest.mark.parametrize(
    ("state", "facts", "shown"),
    [
        ("GONE", {"exit_code": 3}, "0:ended=3"),
        ("GONE", {"phase": "running"}, "0:lost"),
        ("RUNNING", {"phase": "running"}, "0:disconnected"),
        ("RUNNING", {"phase": "running", "connected": True}, "0:running"),
        ("BOOTING", {"phase": "not_connected"}, "0:not_connected"),
    ],
)
def test_show__says_what_became_of_a_node(
    perdure: RunPerdure, server: Controller, preempted_job: int, state: str, facts: dict[str, object], shown: str
) -> None:
    node = {**ATTEMPT["nodes"][0], "exit_code": None, **facts}
    server.attempts[preempted_job] = [{**ATTEMPT, "state": state, "nodes": [node]}]
    out = perdure("jobs", "show", preempted_job, env={"COLUMNS": "160"}).stdout
    assert next(line for line in out.splitlines() if "spot  p3.2xlarge" in line).split()[-1] == shown


def test_show__leaves_the_nodes_of_a_refused_attempt_empty(
    perdure: RunPerdure, server: Controller, preempted_job: int
) -> None:
    node = {**ATTEMPT["nodes"][0], "instance_id": None, "phase": "not_connected", "exit_code": None}
    server.attempts[preempted_job] = [{**ATTEMPT, "reason": "REFUSED", "nodes": [node]}]
    out = perdure("jobs", "show", preempted_job, env={"COLUMNS": "160"}).stdout
    assert next(line for line in out.splitlines() if "spot  p3.2xlarge" in line).split()[-1] == "REFUSED"


FORGED = "\x1b[2J\x1b]0;title\x07\u202e\x9b31m\nJob 1 (bert): SUCCEEDED"
# The only control characters that the commands themselves print: line ends, and colors of statuses and of errors.
_OWN = re.compile(r"\r\n|\x1b\[[0-9;]*m")


@pytest.mark.parametrize(
    "words", ["jobs show 1", "jobs queue", "jobs logs 1 --controller --no-follow", "jobs cancel --name \x1b[2J -y"]
)
def test_terminal__receives_no_control_character_of_a_node_or_a_user(
    on_terminal: StartOnTerminal, preempted_job: int, server: Controller, words: str
) -> None:
    entries = server.timelines[preempted_job]
    entries[1] = {**entries[1], "message": FORGED, "kind": f"checkpoint.{FORGED}", "data": {"step": FORGED}}
    server.jobs[preempted_job][0].update(dict.fromkeys(("user", "name", "message", "task_name", "task_id"), FORGED))
    server.jobs[preempted_job][0].update(status="PENDING", reason="BACKING_OFF", ended_at=None)
    terminal = on_terminal(*words.split(), COLUMNS="400")
    terminal.end()
    shown = _OWN.sub("\n", terminal.text)
    assert [c for c in shown if not c.isprintable() and c != "\n"] == []
    assert not re.search(r"^Job 1 \(bert\): SUCCEEDED", shown, re.MULTILINE), "no forged line"


def test_json__escapes_what_a_terminal_would_obey(
    on_terminal: StartOnTerminal, preempted_job: int, server: Controller
) -> None:
    server.jobs[preempted_job][0]["user"] = FORGED
    terminal = on_terminal("jobs", "show", "1", "-o", "json")
    terminal.end()
    assert [c for c in terminal.text if not c.isprintable() and c not in "\r\n"] == []
