"""A database that is older than its home, empty, or without its WAL is refused, and what is lost is named."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from perdure.sdk.connection.discovery import recorded_pid
from support.helpers.controllers import Controller, running_controller

TICKER = "for i in $(seq 1 6000); do echo {name} $i; sleep 0.1; done"


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with running_controller(tmp_path / "home") as one:
        yield one


def launch(controller: Controller, name: str) -> int:
    command = TICKER.format(name=name)
    done = controller.perdure("jobs", "launch", command, "--name", name, "--infra", "local", "--detach-run", "--yes")
    match = re.search(r"Job (\d+)", done.stdout + done.stderr)
    assert match, done.stdout + done.stderr
    controller.until(lambda: f"{name} 2\n" in controller.log(int(match[1])), f"output of {name}")
    return int(match[1])


def kill(controller: Controller) -> None:
    pid = recorded_pid(controller.home)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    controller.until(lambda: recorded_pid(controller.home) is None, "the daemon's death")


def copy_database(controller: Controller, target: Path) -> None:
    """Copy it while no daemon runs."""
    kill(controller)
    for file in controller.home.glob("perdure.db*"):
        shutil.copy(file, target / file.name)
    controller.perdure("controller", "start")


def put_back(controller: Controller, source: Path) -> None:
    for file in controller.home.glob("perdure.db*"):
        file.unlink()
    for file in source.glob("perdure.db*"):
        shutil.copy(file, controller.home / file.name)


def refusal(controller: Controller) -> str:
    done = controller.perdure("jobs", "queue", check=False)
    assert done.returncode != 0, done.stdout
    assert "perdure controller accept-database" in done.stderr, done.stderr
    return done.stderr


@pytest.mark.slow
def test_older_database__is_refused_until_accepted_and_mixes_nothing(controller: Controller, tmp_path: Path) -> None:
    kept = launch(controller, "kept")
    copy_database(controller, tmp_path)
    lost = launch(controller, "lost")
    machine = controller.job(lost)["attempts"][-1]["nodes"][0]["instance_id"]
    kill(controller)
    put_back(controller, tmp_path)

    assert f"job {lost}: " in refusal(controller), "it names what is lost"
    done = controller.perdure("controller", "accept-database", check=False)
    assert done.returncode == 2, "it asks"
    done = controller.perdure("controller", "accept-database", "--yes")
    assert f"lost: job {lost}: " in done.stdout
    assert (controller.home / f"local/instances/{machine}/machine").exists(), "accepting ends nothing"
    controller.perdure("controller", "start")

    new = launch(controller, "new")
    assert new == lost + 1, "an id is not given twice"
    assert "lost" not in controller.log(new)
    assert list(controller.home.glob(f"lost-logs/*/{lost}/0/1/0.log")), "the output of the lost job is kept"
    controller.until(
        lambda: not (controller.home / f"local/instances/{machine}/machine").exists(), "the end of the lost machine"
    )
    status = controller.perdure("controller", "status").stdout
    assert f"of job {lost}" in status, "it was named"
    log = [json.loads(line) for line in (controller.home / "controller.log").read_text().splitlines()]
    assert any(line["event"] == "machine.unknown" and line["job"] == lost for line in log)
    assert controller.job(kept)["status"] == "RUNNING"
    assert controller.job(kept)["recovery_count"] == 0, "the job that both copies know was adopted"
    assert len(controller.job(new)["attempts"]) == 1


@pytest.mark.slow
def test_database__that_is_replaced_under_a_running_daemon_stops_it(controller: Controller) -> None:
    job = launch(controller, "kept")
    with closing(sqlite3.connect(controller.home / "perdure.db", timeout=30)) as conn, conn:
        conn.execute("UPDATE meta SET value = '0' WHERE name = 'watermark'")
    controller.until(lambda: recorded_pid(controller.home) is None, "the daemon's end")
    assert f"every change to jobs up to {job} " in refusal(controller)
    controller.perdure("controller", "accept-database", "--yes")
    controller.perdure("controller", "start")
    controller.until(lambda: controller.job(job)["status"] == "RUNNING", "the job goes on")
    assert len(controller.job(job)["attempts"]) == 1


def truncate(home: Path) -> None:
    for file in home.glob("perdure.db-*"):
        file.unlink()
    os.truncate(home / "perdure.db", 0)


def lose_wal(home: Path) -> None:
    (home / "perdure.db-wal").unlink()


def remove(home: Path) -> None:
    for file in home.glob("perdure.db*"):
        file.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("damage", [truncate, lose_wal, remove])
def test_lost_database__is_no_new_installation(controller: Controller, damage: Callable[[Path], None]) -> None:
    job = launch(controller, "lost")
    kill(controller)
    damage(controller.home)
    assert f"job {job}: " in refusal(controller)
    assert f"job {job}: " in refusal(controller), "also at the second start"
    controller.perdure("controller", "accept-database", "--yes")
    controller.perdure("controller", "start")
    controller.until(lambda: not list(controller.home.glob("local/instances/*/machine")), "the end of lost machines")
    assert launch(controller, "new") == job + 1
