"""A deadline on the local cloud: what is said at launch, what is bought, and what the timeline keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)


def launch(controller: Any, folder: Path, asked: str, *, check: bool = True) -> Any:
    task = folder / "task.yaml"
    task.write_text(f"name: due\nresources: {{use_spot: true, job_recovery: {{{asked}}}}}\nrun: echo done\n")
    return controller.perdure("jobs", "launch", str(task), "--yes", check=check)


def newest(controller: Any) -> dict[str, Any]:
    job_id = controller.client.jobs(limit=1)["jobs"][0]["job_id"]
    return controller.until(
        lambda: (job := controller.job(job_id))["status"] in ("SUCCEEDED", "FAILED") and job, "the job's end"
    )


def test_with_time_to_spare_it_runs_on_spot(controller: Any, tmp_path: Path) -> None:
    said = launch(controller, tmp_path, "deadline: 60h, work: 1h")
    assert "after its deadline" not in said.stdout + said.stderr
    (attempt,) = newest(controller)["attempts"]
    assert attempt["market"] == "spot"


def test_without_it_runs_on_demand_and_the_user_is_told(controller: Any, tmp_path: Path) -> None:
    said = launch(controller, tmp_path, "deadline: 61m, work: 1h")
    assert "even on-demand will end it about" in said.stdout + said.stderr
    ended = newest(controller)
    (attempt,) = ended["attempts"]
    assert attempt["market"] == "on-demand"
    assert "task.late" in str(controller.client.job(ended["job_id"]))


def test_a_deadline_that_has_passed_is_refused_and_changes_nothing(controller: Any, tmp_path: Path) -> None:
    before = [job["job_id"] for job in controller.client.jobs()["jobs"]]
    refused = launch(controller, tmp_path, "deadline: 2020-01-01T00:00Z, work: 1h", check=False)
    assert refused.returncode != 0
    assert "the deadline has passed" in refused.stdout + refused.stderr
    assert [job["job_id"] for job in controller.client.jobs()["jobs"]] == before


def test_a_dry_run_foresees_cost_and_end(controller: Any, tmp_path: Path) -> None:
    task = tmp_path / "task.yaml"
    asked = "job_recovery: {deadline: 60h, work: 40h}"
    task.write_text(f"resources: {{use_spot: true, {asked}}}\nrun: echo done\n")
    said = controller.perdure("jobs", "launch", str(task), "--dryrun").stdout
    assert "Expected cost $" in said
    assert "Expected end in" in said
    assert "After its deadline: 0% of" in said
    task.write_text("resources: {use_spot: true}\nrun: echo done\n")
    assert "No forecast: nobody said how long" in controller.perdure("jobs", "launch", str(task), "--dryrun").stdout
