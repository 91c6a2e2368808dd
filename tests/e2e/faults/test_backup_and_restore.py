"""A backup that is made while jobs run is restored: known jobs are adopted, unknown machines are named and ended."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.sdk.connection.discovery import recorded_pid
from support.helpers.controllers import Controller, running_controller

TICKER = "for i in $(seq 1 6000); do echo {name} $i; sleep 0.1; done"


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text(f"backup: {{to: {tmp_path / 'scheduled'}, interval: 1h, keep: 2}}\n")
    with running_controller(home) as one:
        yield one


def launch(controller: Controller, name: str, *options: str) -> int:
    command = TICKER.format(name=name)
    done = controller.perdure(
        "jobs", "launch", command, "--name", name, "--infra", "local", "--detach-run", "--yes", *options
    )
    match = re.search(r"Job (\d+)", done.stdout + done.stderr)
    assert match, done.stdout + done.stderr
    controller.until(lambda: f"{name} 2\n" in controller.log(int(match[1])), f"output of {name}")
    return int(match[1])


@pytest.mark.slow
def test_restore__adopts_known_jobs_and_names_unknown_machines(controller: Controller, tmp_path: Path) -> None:
    controller.until(lambda: list(tmp_path.glob("scheduled/perdure-*")), "the scheduled backup")
    status = controller.until(
        lambda: re.search(r"backup +to (\S+), the last one: 2", controller.perdure("controller", "status").stdout),
        "the backup in the status",
    )
    assert status[1] == f"{tmp_path / 'scheduled'}/"

    known = launch(controller, "known", "--env", "TOKEN=1")
    done = controller.perdure("controller", "backup", tmp_path / "one.backup")
    assert "it contains secret.key" in done.stdout
    before = controller.log(known).count("\n")
    unknown = launch(controller, "unknown")
    machine = controller.home / "local/instances" / controller.job(unknown)["attempts"][-1]["nodes"][0]["instance_id"]

    done = controller.perdure("controller", "restore", tmp_path / "one.backup", check=False)
    assert done.returncode == 1
    assert "to restore a backup, stop it first" in done.stderr
    pid = recorded_pid(controller.home)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    controller.until(lambda: recorded_pid(controller.home) is None, "the daemon's death")
    for path in controller.home.glob("perdure.db*"):
        path.unlink()
    controller.perdure("controller", "restore", tmp_path / "one.backup")
    assert (machine / "machine").exists(), "a restore ends nothing"
    controller.perdure("controller", "start")

    controller.until(lambda: controller.log(known).count("\n") > before + 20, "more output of the known job")
    job = controller.job(known)
    assert (job["status"], job["recovery_count"], len(job["attempts"])) == ("RUNNING", 0, 1)
    lines = [line for line in controller.log(known).splitlines() if "known" in line]
    assert lines == [f"known {i}" for i in range(1, len(lines) + 1)], "none lost, none twice"
    controller.until(lambda: not (machine / "machine").exists(), "the end of the unknown machine")
    assert f"of job {unknown}" in controller.perdure("controller", "status").stdout
    assert launch(controller, "new") == unknown + 1
