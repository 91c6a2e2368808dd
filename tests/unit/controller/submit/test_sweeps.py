"""Sweeps: one job for each combination, retries of those that failed, and what is refused. On both databases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from perdure.controller.api.app import create_app
from perdure.controller.daemon import Daemon
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.store.records.jobs import Job, Task

GRID = {"LR": ["1e-3", "0.1"], "SEED": ["1", "2"]}


@dataclass(frozen=True)
class Controller:
    client: TestClient
    daemon: Daemon

    def call(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        headers = {"Authorization": f"Bearer {self.daemon.api_context.keyring.user_token}"}
        answer = self.client.request(method, f"/api/v1{path}", json=body, headers=headers)
        assert answer.status_code == status, answer.text
        return answer.json()

    def launch(self, status: int = 201, num_jobs: int = 1, tasks: int = 1, **task: Any) -> Any:
        one = {"run": "true", "sweep": GRID, **task}
        return self.call("POST", "/jobs", {"tasks": [one] * tasks, "num_jobs": num_jobs, "key": "k"}, status)

    def plan(self, status: int = 200, num_jobs: int = 1, tasks: int = 1, **task: Any) -> Any:
        one = {"run": "true", "sweep": GRID, **task}
        return self.call("POST", "/plan", {"tasks": [one] * tasks, "num_jobs": num_jobs}, status)

    def end(self, **statuses: str) -> None:
        """End jobs, by `j<id>`."""
        with self.daemon.database.begin() as conn:
            for name, status in statuses.items():
                conn.execute(update(Task).where(Task.c.job_id == int(name[1:])).values(status=status))

    def sweep(self, sweep_id: int = 1) -> Any:
        return self.call("GET", f"/sweeps/{sweep_id}")


@pytest.fixture
def controller(tmp_path: Path, database_url: str) -> Iterator[Controller]:
    """A controller whose reconciler is not started."""
    url = "" if database_url.startswith("sqlite") else database_url
    daemon = Daemon(Settings(tmp_path, database_url=url), ManualClock())
    yield Controller(TestClient(create_app(daemon.api_context), base_url="http://127.0.0.1"), daemon)
    daemon.socket.close()
    daemon.close()


def test_grid__has_a_job_for_each_combination(controller: Controller) -> None:
    assert controller.launch()["job_ids"] == [1, 2, 3, 4]
    assert controller.launch()["job_ids"] == [1, 2, 3, 4], "the same key"
    found = controller.sweep()
    assert (found["size"], found["counts"]) == (4, {"PENDING": 4})
    assert [job["values"] for job in found["jobs"]][1:3] == [{"LR": "1e-3", "SEED": "2"}, {"LR": "0.1", "SEED": "1"}]
    listed = controller.call("GET", "/jobs")["jobs"]
    assert [(job["sweep_id"], job["sweep_rank"]) for job in listed] == [(1, 3), (1, 2), (1, 1), (1, 0)]


def test_retry__launches_what_has_failed_once_for_each_key(controller: Controller) -> None:
    controller.launch()
    controller.end(j1="SUCCEEDED", j2="FAILED", j3="CANCELLED", j4="FAILED_SETUP")
    retried = controller.call("POST", "/sweeps/1/retry", {"key": "a"})
    assert retried == {"job_ids": [5, 6]}
    found = controller.sweep()
    assert [job["job_id"] for job in found["jobs"]] == [1, 5, 3, 6]
    assert found["counts"] == {"SUCCEEDED": 1, "PENDING": 2, "CANCELLED": 1}
    assert found["jobs"][1]["values"] == {"LR": "1e-3", "SEED": "2"}
    with controller.daemon.database.connect() as conn:
        rows = conn.execute(select(Job.c.batch_rank, Job.c.batch_size).where(Job.c.id > 4).order_by(Job.c.id)).all()
    assert [tuple(row) for row in rows] == [(1, 4), (3, 4)], "a retry sees the same rank of the same number"
    controller.call("POST", "/sweeps/1/retry", {"key": "b"}, 409)
    with controller.daemon.database.connect() as conn:
        of_retries = select(Job.c.idempotency_key).where(Job.c.idempotency_key.startswith("sweep"))
        keys = set(conn.execute(of_retries).scalars())
    assert keys
    for key in keys:  # no user can send one of them
        assert controller.call("POST", "/sweeps/1/retry", {"key": key}, 400)


def test_retry__needs_the_secrets_that_are_gone(controller: Controller) -> None:
    controller.launch(secrets={"TOKEN": "sesame"})
    controller.end(j1="FAILED")
    error = controller.call("POST", "/sweeps/1/retry", {"key": "a"}, 409)["error"]
    assert "secrets" in error["message"]


def test_jobs_that_are_launched_together__are_a_sweep_without_values(controller: Controller) -> None:
    assert controller.launch(num_jobs=3, sweep={})["job_ids"] == [1, 2, 3]
    assert [job["values"] for job in controller.sweep()["jobs"]] == [{}, {}, {}]


def test_job__that_is_alone_is_no_sweep(controller: Controller) -> None:
    controller.launch(sweep={})
    controller.call("GET", "/sweeps/1", status=404)
    assert controller.call("GET", "/jobs")["jobs"][0]["sweep_id"] is None


@pytest.mark.parametrize(
    ("launch", "fix"),
    [
        ({"num_jobs": 3}, "leave out the number of jobs"),
        ({"tasks": 2}, "launch its task by `perdure jobs launch`"),
        ({"sweep": {f"V{n}": ["1", "2", "3", "4"] for n in range(7)}}, "give fewer values"),
        ({"sweep": {"LR": []}}, ""),
        ({"sweep": {"LR": ["1", "1"]}}, ""),
        ({"sweep": {"1LR": ["1"]}}, ""),
    ],
    ids=["another number", "pipeline", "too many", "no values", "twice", "name"],
)
def test_sweep__that_cannot_be_is_refused(controller: Controller, launch: dict[str, Any], fix: str) -> None:
    error = controller.launch(400, **launch)["error"]
    assert "sweep" in f"{error['message']} {error['where']}"
    assert fix in error["fix"]
    assert controller.call("GET", "/jobs")["jobs"] == []
    assert controller.plan(400, **launch)["error"] == error, "the plan says so before files are uploaded"


def test_plan__says_how_many_jobs_a_launch_makes(controller: Controller) -> None:
    assert controller.plan()["num_jobs"] == 4
    assert controller.plan(num_jobs=4)["num_jobs"] == 4
    assert controller.plan(num_jobs=3, sweep={})["num_jobs"] == 3
    assert controller.plan(sweep={})["num_jobs"] == 1
