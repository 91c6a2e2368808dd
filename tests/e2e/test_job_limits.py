"""Jobs that hang, and jobs that run too long, on a real daemon with real machines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.helpers.controllers import Controller, running_controller

# The first run saves a step and hangs; the second finds the step and ends.
HANGS_ONCE = """
python3 - <<'END'
import time
from perdure.checkpoint import Checkpointer
checkpointer = Checkpointer("$CHECKPOINTS")
if checkpointer.latest() is None:
    checkpointer.save(1, {"step": 1})
    time.sleep(3600)
END
"""


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    home = tmp_path_factory.mktemp("limits") / "home"
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text(
        "local: {zones: {local-a: {region: local, capacity: 8}}}\ntimeouts: {drain_timeout_s: 2}\n"
    )
    with running_controller(home) as one:
        yield one


def launch(controller: Controller, folder: Path, run: str, recovery: dict[str, Any]) -> int:
    task = {
        "name": "limited",
        "run": run,
        "resources": {"infra": "local", "use_spot": True, "job_recovery": recovery},
        "file_mounts": {"/checkpoint": {"name": "limits-checkpoints", "mode": "MOUNT_CACHED", "store": "local"}},
    }
    path = folder / "task.yaml"
    path.write_text(json.dumps(task))
    before = {job["job_id"] for job in controller.client.jobs(limit=100)["jobs"]}
    controller.perdure("jobs", "launch", "-y", "-d", path)
    (new,) = {job["job_id"] for job in controller.client.jobs(limit=100)["jobs"]} - before
    return int(new)


def kinds(controller: Controller, job: int) -> list[str]:
    return [entry["kind"] for entry in controller.job(job)["timeline"]]


@pytest.mark.slow
@pytest.mark.fuse
def test_hanging_job__is_told_restarted_and_finishes(controller: Controller, tmp_path: Path) -> None:
    recovery = {"stuck_after": "3s", "restart_when_stuck": "6s"}
    run = HANGS_ONCE.replace("$CHECKPOINTS", "/checkpoint/run")
    job = launch(controller, tmp_path, run, recovery)
    controller.until(lambda: "task.stuck" in kinds(controller, job), "the mark")
    assert "no step was reported after step 1" in controller.perdure("jobs", "show", job).stdout
    controller.until(lambda: controller.job(job)["status"] == "SUCCEEDED", "the end of the second run")
    (restarted,) = [entry for entry in controller.job(job)["timeline"] if entry["kind"] == "attempt.failed"]
    assert restarted["reason"] == "STUCK"
    assert controller.job(job)["generation"] == 2


def test_max_duration__ends_a_job(controller: Controller, tmp_path: Path) -> None:
    job = launch(controller, tmp_path, "sleep 3600", {"max_duration": "2s"})
    controller.until(lambda: controller.job(job)["status"] == "FAILED", "the end")
    assert controller.job(job)["reason"] == "MAX_DURATION"
    assert "max_duration" in controller.perdure("jobs", "show", job).stdout
