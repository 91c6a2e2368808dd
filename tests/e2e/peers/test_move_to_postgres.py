"""A controller moves from SQLite to PostgreSQL while its job runs undisturbed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.helpers.controllers import ControllerOn
from support.helpers.postgres_server import Postgres

pytestmark = pytest.mark.long


def test_running_job__survives_the_move_to_postgres(
    controller_on: ControllerOn, postgres: Postgres, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    task = tmp_path / "task.yaml"
    run = "for i in $(seq 60); do echo line $i; sleep 0.5; done"
    task.write_text(f"resources: {{infra: local, use_spot: true}}\nrun: {run}\n")
    with controller_on(home) as one:
        one.perdure("jobs", "launch", task, "--yes", "--detach-run", "-n", "mover")
        one.until(lambda: one.job(1)["status"] == "RUNNING", "the job runs")
        one.until(lambda: "line 3" in one.log(1), "some of its log")
        output = one.perdure("controller", "migrate", "--to", postgres.new_database()).stdout
        assert "names the new database" in output
        one.perdure("controller", "start")
        assert one.job(1)["status"] in ("RUNNING", "SUCCEEDED")
        one.until(lambda: one.job(1)["status"] == "SUCCEEDED", "the job ends")
        assert one.job(1)["recovery_count"] == 0
        assert [int(i) for i in re.findall(r"^line (\d+)$", one.log(1), re.MULTILINE)] == list(range(1, 61))
