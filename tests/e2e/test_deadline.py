"""A deadline on the local cloud: the message at launch, the machines launched, and the timeline."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.helpers.controllers import Controller

pytestmark = pytest.mark.timeout(300)


def launch(controller: Controller, folder: Path, asked: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    task = folder / "task.yaml"
    task.write_text(f"name: due\nresources: {{use_spot: true, job_recovery: {{{asked}}}}}\nrun: echo done\n")
    return controller.perdure("jobs", "launch", str(task), "--yes", check=check)


def newest(controller: Controller) -> dict[str, Any]:
    job_id = controller.client.jobs(limit=1)["jobs"][0]["job_id"]

    def ended() -> dict[str, Any] | None:
        job = controller.job(job_id)
        return job if job["status"] in ("SUCCEEDED", "FAILED") else None

    return controller.until(ended, "the job's end")


def test_deadline__with_slack_runs_on_spot(controller: Controller, tmp_path: Path) -> None:
    output = launch(controller, tmp_path, "deadline: 60h, work: 1h")
    assert "after its deadline" not in output.stdout + output.stderr
    (attempt,) = newest(controller)["attempts"]
    assert attempt["market"] == "spot"


def test_deadline__without_slack_runs_on_demand_and_warns(controller: Controller, tmp_path: Path) -> None:
    output = launch(controller, tmp_path, "deadline: 61m, work: 1h")
    assert "even on-demand, it will end about" in output.stdout + output.stderr
    ended = newest(controller)
    (attempt,) = ended["attempts"]
    assert attempt["market"] == "on-demand"
    assert "task.deadline_missed_forecast" in str(controller.client.job(ended["job_id"]))


def test_deadline__in_the_past_is_rejected(controller: Controller, tmp_path: Path) -> None:
    before = [job["job_id"] for job in controller.client.jobs()["jobs"]]
    refused = launch(controller, tmp_path, "deadline: 2020-01-01T00:00Z, work: 1h", check=False)
    assert refused.returncode != 0
    assert "the deadline has passed" in refused.stdout + refused.stderr
    assert [job["job_id"] for job in controller.client.jobs()["jobs"]] == before


def test_dry_run__forecasts_cost_and_end(controller: Controller, tmp_path: Path) -> None:
    task = tmp_path / "task.yaml"
    asked = "job_recovery: {deadline: 60h, work: 40h}"
    task.write_text(f"resources: {{use_spot: true, {asked}}}\nrun: echo done\n")
    output = controller.perdure("jobs", "launch", str(task), "--dryrun").stdout
    assert "Expected cost: $" in output
    assert "Expected finish: in " in output
    assert "Missed deadline: 0% of" in output
    task.write_text("resources: {use_spot: true}\nrun: echo done\n")
    assert (
        "No forecast: the amount of work is unknown"
        in controller.perdure("jobs", "launch", str(task), "--dryrun").stdout
    )
