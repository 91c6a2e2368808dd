"""show, logs, cancel, preempt, check."""

from __future__ import annotations

import json
import signal

import pytest

from perdure.cli import cancel

ATTEMPT = {
    "task_index": 0, "generation": 1, "state": "GONE", "reason": "PREEMPTION_NOTICE", "cloud": "aws",
    "region": "us-east-1", "zone": "us-east-1a", "instance_type": "p3.2xlarge", "market": "spot",
    "price_per_hour": 0.918, "requested_at": "2026-11-21T01:02:04.000000Z",
    "running_at": "2026-11-21T01:03:04.000000Z", "stopped_at": "2026-11-21T01:05:04.000000Z",
    "gone_at": "2026-11-21T01:05:30.000000Z", "cost_usd": 0.05,
    "nodes": [
        {"rank": 0, "instance_id": "i-1", "ip": "10.0.0.1", "phase": "ended", "connected": False, "exit_code": 143}
    ],
}  # fmt: skip


def entry(at, kind, generation=None, rank=None, reason=None, message=""):
    about = {"task_index": 0, "generation": generation, "rank": rank, "reason": reason, "message": message, "data": {}}
    return {"at": f"2026-11-21T{at}.000000Z", "kind": kind, **about}


@pytest.fixture
def moved(named):
    """A job that was preempted once and runs again."""
    job_id = named.add("RUNNING", name="bert", printed=b"one\ntwo\nthree\n", submitted_at="2026-11-21T01:02:03.000000Z")
    named.attempts[job_id] = [ATTEMPT, {**ATTEMPT, "generation": 2, "state": "RUNNING", "reason": None,
                                        "zone": "us-east-1b", "stopped_at": None, "gone_at": None}]  # fmt: skip
    named.timelines[job_id] = [
        entry("01:02:03", "job.submitted", reason="SUBMITTED"),
        entry("01:04:33", "node.notice", 1, 0, "PREEMPTION_NOTICE", "the cloud takes the machine at 01:06:33"),
        entry("01:05:10", "attempt.running", 2),
    ]
    return job_id


def test_show_tells_the_story(perdure, moved):
    result = perdure("jobs", "show", moved, env={"COLUMNS": "160", "TZ": "UTC"})
    assert result.exit_code == 0, result.output
    out = result.stdout
    assert out.startswith("Job 1 (bert): RUNNING\n")
    assert "  cost         $0.42; on-demand: $1.40, 70% saved\n" in out
    assert "  task id      sky-managed-2026-11-21-01-02-03-000004_bert_1-0\n" in out
    first = next(line for line in out.splitlines() if "us-east-1a spot  p3.2xlarge" in line)
    assert first.split()[-3:] == ["GONE", "PREEMPTION_NOTICE", "0:ended=143"]
    assert "1m" in first.split(), "ready a minute after it was asked for"
    assert "2m" in first.split(), "ran for two"
    notice = next(line for line in out.splitlines() if "node.notice" in line)
    assert notice.split()[:6] == ["+2m", "30s", "2026-11-21", "01:04:33", "1.0", "node.notice"]
    assert notice.endswith("aws/us-east-1a spot  PREEMPTION_NOTICE: the cloud takes the machine at 01:06:33")


def test_show_as_json(perdure, moved, named):
    job = json.loads(perdure("jobs", "show", moved, "-o", "json").stdout)
    assert job["attempts"] == named.attempts[moved]
    assert job["timeline"] == named.timelines[moved]


def test_show_of_a_pipeline_shows_each_task(perdure, named):
    named.add("SUCCEEDED", "FAILED", "CANCELLED", name="p", message="`run` exited with 3", exit_code=3)
    out = perdure("jobs", "show", 1).stdout
    assert out.startswith("Job 1 (p): FAILED\n")
    assert "Task 1 (p-1): FAILED\n  why          `run` exited with 3\n  exit code    3\n" in out
    assert "Task 2 (p-2): CANCELLED\n" in out


@pytest.mark.parametrize("words", [["show", "9"], ["logs", "9"], ["logs"], ["logs", "-n", "nobody"], ["preempt", "9"]])
def test_unknown_jobs_end_with_102(perdure, named, words):
    result = perdure("jobs", *words)
    assert result.exit_code == 102
    assert "there " in result.stderr


def test_logs_of_the_newest_job_by_name_and_by_task(perdure, named):
    named.add("SUCCEEDED", name="a", printed=b"old\n")
    named.add("SUCCEEDED", "FAILED", name="b", printed=b"new\n")
    assert perdure("jobs", "logs").stdout == "new\n"
    assert perdure("jobs", "logs", "-n", "a").stdout == "old\n"
    assert perdure("jobs", "logs", "2").exit_code == 100
    assert perdure("jobs", "logs", "2", "b-0").exit_code == 0
    assert "task=0" in named.called("GET .*/logs.*")[-1][1]
    assert perdure("jobs", "logs", "2", "1").exit_code == 100
    result = perdure("jobs", "logs", "2", "c")
    assert result.exit_code == 2
    assert "it has: 0 (b-0), 1 (b-1)" in result.stderr


def test_logs_without_following(perdure, moved):
    result = perdure("jobs", "logs", moved, "--no-follow", "--tail", "2")
    assert result.exit_code == 101
    assert result.stdout == "two\nthree\n"


def test_logs_are_bytes_as_they_were_printed(in_process, named):
    named.add("SUCCEEDED", printed=b"a\xffb\r\x1b[31mred\n")
    process = in_process("jobs", "logs")
    assert process.stdout.buffer.read() == b"a\xffb\r\x1b[31mred\n"


def test_the_controllers_story_as_a_log(in_process, named, moved):
    process = in_process("jobs", "logs", moved, "--controller", TZ="UTC")
    assert process.stdout.readline() == "2026-11-21 01:02:03  job.submitted  SUBMITTED\n"
    line = process.stdout.readline()
    assert line.startswith("2026-11-21 01:04:33  [attempt 1.0]  node.notice  aws/us-east-1a spot  PREEMPTION_NOTICE")
    process.stdout.readline()
    named.timelines[moved].append(entry("01:07:00", "job.ended", reason="COMPLETED"))
    named.end(moved)
    assert process.stdout.readline() == "2026-11-21 01:07:00  job.ended  COMPLETED\n"
    assert process.wait(30) == 0


def test_ctrl_c_in_logs(in_process, moved):
    process = in_process("jobs", "logs", moved)
    assert process.stdout.readline() == "one\n"
    process.send_signal(signal.SIGINT)
    assert "job 1 goes on" in process.communicate(timeout=30)[1]
    assert process.returncode == 101


def test_cancel_says_what_became_of_each(perdure, named):
    named.add("RUNNING")
    named.add("SUCCEEDED")
    named.add("RUNNING")
    assert perdure("jobs", "cancel", 3, "-y").stdout == "Job with ID 3 is scheduled to be cancelled.\n"
    assert named.called("POST .*cancel")[-1][2] == {
        "ids": [3], "name": None, "all": False, "graceful": True, "grace_s": None,
    }  # fmt: skip
    result = perdure("jobs", "cancel", 1, 2, 3, 9, "-y", "--no-graceful")
    assert result.exit_code == 102
    assert result.stdout == "Jobs with IDs 1, 3 are scheduled to be cancelled.\nJob 2 has already ended.\n"
    assert "there is no job 9" in result.stderr
    assert named.called("POST .*cancel")[-1][2]["graceful"] is False


def test_cancel_names_many_in_few_words():
    assert cancel._listed([5, 1, 2, 3, 7, 8]) == "1-3, 5, 7, 8"


def test_cancel_by_name_and_all(perdure, named):
    assert perdure("jobs", "cancel", "--all", "-y").stdout == "There is nothing to cancel.\n"
    named.add("RUNNING", name="a")
    named.add("PENDING", name="b")
    result = perdure("jobs", "cancel", "-n", "b", "-y", "--graceful-timeout", "300")
    assert result.stdout == "Job with ID 2 is scheduled to be cancelled.\n"
    assert named.called("POST .*cancel")[-1][2]["grace_s"] == 300
    assert "IDs 1, 2 are" in perdure("jobs", "cancel", "-a", "-y").stdout


@pytest.mark.parametrize("words", [[], ["1", "--all"], ["-n", "x", "1"]])
def test_cancel_wants_one_way_of_saying_which(perdure, named, words):
    result = perdure("jobs", "cancel", "-y", *words)
    assert result.exit_code == 2
    assert "say which jobs" in result.stderr
    assert named.calls == []


def test_cancel_asks(perdure, named, on_terminal):
    named.add("RUNNING")
    assert perdure("jobs", "cancel", 1).exit_code == 2
    assert named.calls == []
    terminal = on_terminal("jobs", "cancel", "1")
    terminal.read_until("Cancel job 1? [Y/n]")
    terminal.write("n\n")
    assert terminal.end() == 1
    assert named.called("POST .*cancel") == []


@pytest.mark.parametrize(
    ("words", "notice_s", "says"),
    [
        ([], 30.0, "is taken away in 30 s; its notice is given"),
        (["--notice", "2.5"], 2.5, "is taken away in 2.5 s"),
        (["--kill"], None, "is taken away now"),
    ],
)
def test_preempt(perdure, named, moved, words, notice_s, says):
    result = perdure("jobs", "preempt", moved, "--node", "1", *words)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Node 1 of job 1 (i-1 in us-east-1a) ")
    assert says in result.stdout
    assert named.called("POST .*preempt")[0][2] == {"node": 1, "notice_s": notice_s}


def test_preempt_of_a_job_without_a_machine(perdure, named):
    named.add("PENDING")
    result = perdure("jobs", "preempt", 1)
    assert result.exit_code == 1
    assert result.stderr == "Error: job 1 has no machine: it is PENDING\n  wait until it runs\n"
    assert perdure("jobs", "preempt", 1, "--kill", "--notice", 3).exit_code == 2


def test_check(perdure, named):
    named.clouds = [
        {"name": "local", "usable": True, "why": None, "regions": ["local"], "notes": ["3 zones on this machine"]},
        {"name": "aws", "usable": False, "why": "no credentials: run `aws configure`", "regions": [], "notes": []},
    ]
    result = perdure("check")
    assert result.exit_code == 0
    assert result.stdout == (
        "local: usable\n  regions: local\n  3 zones on this machine\n"
        "aws: not usable\n  no credentials: run `aws configure`\n"
    )
    assert perdure("check", "AWS").exit_code == 1
    assert perdure("check", "local").exit_code == 0
    assert perdure("check", "azur").exit_code == 2


def test_check_tells_what_was_found_and_what_to_do_once(perdure, named):
    named.clouds = [{"name": "aws", "usable": True, "why": None, "regions": ["us-east-1"], "notes": []}]
    who = {"about": "credentials", "outcome": "ok", "text": "somebody", "fix": None}
    none = [
        {"about": "quotas", "outcome": "limits", "text": f"{what}: nothing left", "fix": "ask for more"}
        for what in ("spot vCPUs", "on-demand vCPUs")
    ]
    named.findings = {"aws": [who, *none]}
    result = perdure("check", "aws")
    assert result.exit_code == 0
    assert result.stdout == (
        "aws: usable\n  regions: us-east-1\n  limits quotas: spot vCPUs: nothing left\n"
        "  limits quotas: on-demand vCPUs: nothing left\n  to do: ask for more\n"
    )
    assert "ok credentials: somebody" in perdure("check", "-v").stdout
    fatal = {"about": "permissions", "outcome": "fails", "text": "ec2:RunInstances is missing", "fix": "allow it"}
    named.findings = {"aws": [who, fatal]}
    result = perdure("check", "aws", "-o", "json")
    assert result.exit_code == 1
    (told,) = json.loads(result.stdout)
    assert (told["usable"], told["findings"]) == (False, [who, fatal])
