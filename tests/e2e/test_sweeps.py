"""A sweep of five hundred runs as its user sees it: one row, cancelled, retried and read as one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.helpers.controllers import Controller, running_controller
from support.helpers.timing import scaled

pytestmark = pytest.mark.slow

CANCEL_S = 5.0
TASK = f"""
name: tune
resources: {{cpus: 1, infra: local}}
sweep:
  A: {list(range(25))}
  B: {list(range(20))}
run: |
  echo with $A and $B
  [ $A != 0 ] || exit 3
  sleep 600
"""


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    home = tmp_path_factory.mktemp("sweeps") / "home"
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text("local: {max_machines: 4}\n")
    with running_controller(home) as one:
        yield one


def test_sweep__of_five_hundred_runs_is_one(controller: Controller, tmp_path: Path) -> None:
    perdure = controller.perdure
    (tmp_path / "tune.yaml").write_text(TASK)
    perdure("jobs", "launch", tmp_path / "tune.yaml", "-y", "-d")
    lines = perdure("jobs", "queue").stdout.splitlines()
    rows = [line for line in lines if "tune" in line and "waiting" not in line]
    assert len(rows) == 1, rows
    assert "tune ×500" in rows[0]
    sweep = int(rows[0].split()[0])

    def shown() -> dict[str, Any]:
        return dict(json.loads(perdure("jobs", "sweep", sweep, "-o", "json").stdout))

    controller.until(lambda: shown()["counts"].get("FAILED", 0) >= 3, "the first runs to fail")
    begun = time.monotonic()
    perdure("jobs", "sweep", sweep, "--cancel", "-y")
    controller.until(lambda: set(shown()["counts"]) <= {"FAILED", "CANCELLED"}, "the end of every run")
    assert time.monotonic() - begun < scaled(CANCEL_S)
    jobs = shown()["jobs"]
    assert (len(jobs), len({job["job_id"] for job in jobs})) == (500, 500)
    failed = [job for job in jobs if job["status"] == "FAILED"]
    assert {job["values"]["A"] for job in failed} == {"0"}
    logs = perdure("jobs", "sweep", sweep, "--logs").stdout
    assert {f"(rank {job['rank']}) with 0 and {job['values']['B']}" for job in failed} <= set(logs.splitlines())
    assert (
        f"{len(failed)} jobs of sweep {sweep} submitted again"
        in perdure("jobs", "sweep", sweep, "--retry-failed", "-y").stdout
    )
    controller.until(lambda: shown()["counts"].get("FAILED", 0) >= len(failed), "the runs to fail again")
    again = [job for job in shown()["jobs"] if job["status"] == "FAILED"]
    assert [job["values"] for job in again] == [job["values"] for job in failed]
    assert {job["job_id"] for job in again}.isdisjoint(job["job_id"] for job in failed)
    assert len([line for line in perdure("jobs", "queue").stdout.splitlines() if "tune" in line]) == 1
