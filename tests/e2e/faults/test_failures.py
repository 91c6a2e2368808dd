"""Common failures on a real daemon and real local machines: nothing is lost, runs twice or is left over."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.helpers.controllers import Controller

TICKER = "for i in $(seq 1 600); do echo tick $i; sleep 0.1; done"


def launch(controller: Controller, command: str, *flags: str) -> int:
    done = controller.perdure("jobs", "launch", command, "--use-spot", "--detach-run", "--yes", *flags)
    match = re.search(r"Job (\d+)", done.stdout + done.stderr)
    assert match, done.stdout + done.stderr
    return int(match[1])


def until_status(controller: Controller, job: int, *statuses: str) -> dict[str, Any]:
    def seen() -> dict[str, Any] | None:
        match = controller.job(job)
        return match if match["status"] in statuses else None

    return dict(controller.until(seen, f"job {job} to be {statuses}, is {controller.job(job)}"))


def until_logged(controller: Controller, job: int, text: str) -> None:
    controller.until(lambda: text in controller.log(job), f"{text!r} in the log of job {job}")


def cancel(controller: Controller, job: int) -> None:
    controller.perdure("jobs", "cancel", str(job), "--yes", "--no-graceful")


def pid_of(controller: Controller) -> int:
    return int(controller.client.controller()["pid"])


def test_killed_daemon__does_not_disturb_the_job(controller: Controller) -> None:
    job = launch(controller, TICKER.replace("600", "60"))
    until_logged(controller, job, "tick 5\n")
    before = controller.job(job)
    os.kill(pid_of(controller), signal.SIGKILL)
    controller.until(lambda: not controller_runs(controller), "the daemon's death")
    controller.perdure("controller", "start")
    after = until_status(controller, job, "SUCCEEDED")
    assert after["recovery_count"] == 0
    assert after["task_id"] == before["task_id"]
    assert len(after["attempts"]) == 1
    ticks = [line for line in controller.log(job).splitlines() if line.startswith("tick")]
    assert ticks == [f"tick {i}" for i in range(1, 61)], "in order, none lost, none twice"


def controller_runs(controller: Controller) -> bool:
    recorded = controller.home / "controller.json"
    pid = int(re.findall(r'"pid": (\d+)', recorded.read_text())[0])
    return psutil.pid_exists(pid) and bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)


@pytest.mark.slow
def test_machine_lost_during_an_outage__is_recovered_afterwards(controller: Controller) -> None:
    job = launch(controller, TICKER)
    until_logged(controller, job, "tick 3\n")
    node = controller.job(job)["attempts"][-1]["nodes"][0]["instance_id"]
    os.kill(pid_of(controller), signal.SIGKILL)
    controller.until(lambda: not controller_runs(controller), "the daemon's death")
    for process in psutil.process_iter(["cmdline"]):
        if node in " ".join(process.info["cmdline"] or []):
            process.kill()
    controller.perdure("controller", "start")
    recovered = until_status(controller, job, "RUNNING")
    assert recovered["generation"] == 2 or controller.until(
        lambda: controller.job(job)["generation"] == 2, "the second attempt"
    )
    cancel(controller, job)


def test_lost_node__recovers_the_task_and_ends_the_other_node(controller: Controller) -> None:
    job = launch(controller, f"echo rank $SKYPILOT_NODE_RANK; {TICKER}", "--num-nodes", "2")
    until_logged(controller, job, "(rank 1) tick 2\n")
    controller.perdure("jobs", "preempt", str(job), "--node", "1", "--kill")
    controller.until(lambda: controller.job(job)["recovery_count"] == 1, "the recovery")
    again = until_status(controller, job, "RUNNING")
    first, second = again["attempts"]
    assert first["state"] in ("STOPPED", "GONE")
    assert first["zone"] != second["zone"]
    assert second["running_at"] >= first["stopped_at"], "never two workloads at a time"
    cancel(controller, job)


def test_failed_rank__ends_the_others_and_the_job(controller: Controller) -> None:
    command = f'if [ "$SKYPILOT_NODE_RANK" = 1 ]; then sleep 0.5; exit 7; fi; {TICKER}'
    job = launch(controller, command, "--num-nodes", "2")
    ended = until_status(controller, job, "FAILED")
    assert "code 7 on node 1" in ended["message"]
    assert ended["recovery_count"] == 0
    assert len(ended["attempts"]) == 1


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("set -e; false; echo never", "FAILED"),
        ("exit 0; echo never", "SUCCEEDED"),
        ("exec true", "SUCCEEDED"),
        ("exec sh -c 'exit 9'", "FAILED"),
        ("nohup sleep 300 >/dev/null 2>&1 & echo left one behind", "SUCCEEDED"),
        ("printf 'no newline'", "SUCCEEDED"),
        ("head -c 300000 /dev/urandom", "SUCCEEDED"),
        ("head -c 1000000 /dev/zero | tr '\\0' x", "SUCCEEDED"),
    ],
)
def test_script_end__is_reported_for_every_kind_of_end(controller: Controller, command: str, status: str) -> None:
    job = launch(controller, command)
    assert until_status(controller, job, "SUCCEEDED", "FAILED")["status"] == status
    controller.until(lambda: controller.job(job)["attempts"][-1]["state"] == "GONE", "the machine's end")


def test_logs__of_a_million_lines_arrive_in_order(controller: Controller) -> None:
    job = launch(controller, "seq 1 1000000")
    until_status(controller, job, "SUCCEEDED")
    raw = (controller.home / "logs" / str(job) / "0" / "1" / "0.log").read_bytes()
    assert raw == b"".join(b"%d\n" % i for i in range(1, 1_000_001))


def test_restarts_on_errors__are_made_and_counted(controller: Controller, tmp_path: Path) -> None:
    task = tmp_path / "flaky.yaml"
    task.write_text(
        "name: flaky\n"
        "resources:\n"
        "  use_spot: true\n"
        "  job_recovery: {max_restarts_on_errors: 1, recover_on_exit_codes: [33]}\n"
        "file_mounts:\n"
        "  /state: {name: flaky-state, mode: MOUNT_CACHED}\n"
        "run: |\n"
        "  n=$(cat /state/n 2>/dev/null || echo 0); n=$((n+1)); echo $n > /state/n; echo try $n $SKYPILOT_TASK_ID\n"
        "  if [ $n = 1 ]; then exit 33; fi\n"
        "  exit 5\n"
    )
    done = controller.perdure("jobs", "launch", str(task), "--yes", check=False)
    assert done.returncode == 100, done.stdout + done.stderr
    job = controller.client.jobs(limit=1)["jobs"][0]["job_id"]
    ended = controller.job(job)
    assert ended["restarts_on_errors"] == 1
    assert ended["recovery_count"] == 0
    tries = [line.split() for line in controller.log(job).splitlines() if line.startswith("try")]
    assert [t[1] for t in tries] == ["1", "2", "3"]
    assert {t[2] for t in tries} == {ended["task_id"]}


def test_failed_setup__is_reported_and_its_log_is_kept(controller: Controller, tmp_path: Path) -> None:
    task = tmp_path / "bad.yaml"
    task.write_text("setup: |\n  echo preparing; exit 4\nrun: echo never\n")
    done = controller.perdure("jobs", "launch", str(task), "--yes", check=False)
    assert done.returncode == 100
    job = controller.client.jobs(limit=1)["jobs"][0]["job_id"]
    assert controller.job(job)["status"] == "FAILED_SETUP"
    assert "preparing" in controller.log(job)
    assert "never" not in controller.log(job)


def test_cancel__gives_the_workload_time_to_save(controller: Controller) -> None:
    job = launch(controller, "trap 'echo saving; sleep 0.5; echo saved; exit 0' TERM; echo ready; sleep 600 & wait")
    until_logged(controller, job, "ready\n")
    controller.perdure("jobs", "cancel", str(job), "--yes")
    assert until_status(controller, job, "CANCELLED")
    assert "saving\nsaved\n" in controller.log(job)


def test_absolute_paths__belong_to_the_machine(controller: Controller) -> None:
    job = launch(controller, "mkdir /of-the-machine && touch ~/x /tmp/of-the-machine && pwd && ls -d /of-the-machine")
    until_status(controller, job, "SUCCEEDED")
    assert not Path("/of-the-machine").exists()
    assert not Path("/tmp/of-the-machine").exists()


def test_secrets__reach_the_task_and_appear_nowhere_else(controller: Controller) -> None:
    command = f"[ ${{#API_KEY}} = 13 ] && {TICKER}"
    job = launch(controller, command, "--secret", "API_KEY=hunter2-xyzzy")
    until_logged(controller, job, "tick 1\n")
    lines = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if "hunter2-xyzzy" in line]
    shown = controller.perdure("jobs", "show", str(job), "-o", "json").stdout
    shown += controller.perdure("jobs", "queue", "-a", "-o", "json").stdout
    shown += (controller.home / "controller.log").read_text()
    assert "hunter2-xyzzy" not in shown
    with sqlite3.connect(controller.home / "perdure.db") as db:
        assert "hunter2-xyzzy" not in "\n".join(db.iterdump())
    cancel(controller, job)


def test_unsatisfiable_request__is_rejected_and_changes_nothing(controller: Controller) -> None:
    before = controller.client.jobs(limit=1)["total"]
    done = controller.perdure("jobs", "launch", "echo hi", "--gpus", "H100:8", "--yes", check=False)
    assert done.returncode != 0
    assert "H100" in done.stderr
    assert controller.client.jobs(limit=1)["total"] == before


def test_finished_jobs__leave_nothing(controller: Controller) -> None:
    controller.perdure("jobs", "cancel", "--all-users", "--yes", "--no-graceful", check=False)
    home = str(controller.home)
    controller.until(lambda: not _processes_under(home), "the end of every process of a machine")
    mounts = subprocess.run(["cat", "/proc/mounts"], capture_output=True, text=True, check=True).stdout
    assert home not in mounts
    for folder in (controller.home / "local" / "instances").iterdir():
        left = {p.name for p in folder.iterdir()}
        assert left <= {"state.json", "agent.log", "host.log", "host.lock"}, f"{folder.name}: {left}"


def _processes_under(home: str) -> list[str]:
    lines = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    return [line for line in lines if home in line and "perdure.controller serve" not in line]
