"""Submissions: quotas of users, batches, overload. Tested through the API, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response
from sqlalchemy import update

from perdure.controller.api.app import create_app
from perdure.controller.daemon import Daemon
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.limits import Quotas
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.store.records import jobs
from perdure.controller.store.records.jobs import Task
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.service import MAX_BATCH_BYTES, Accepted, Submission

MAX_JOBS = 3


@dataclass(frozen=True)
class Controller:
    client: TestClient
    daemon: Daemon

    def launch(self, user: str = "ada", **more: Any) -> Response:
        headers = {"Authorization": f"Bearer {self.daemon.api_context.keyring.user_token}"}
        body = {"name": "j", "tasks": [{"run": "true"}], "user": user, **more}
        return self.client.post("/api/v1/jobs", json=body, headers=headers)

    def jobs(self) -> int:
        headers = {"Authorization": f"Bearer {self.daemon.api_context.keyring.user_token}"}
        return int(self.client.get("/api/v1/jobs", headers=headers).json()["total"])

    def end(self, job_id: int) -> None:
        with self.daemon.database.begin() as conn:
            conn.execute(update(Task).where(Task.c.job_id == job_id).values(status="SUCCEEDED"))


@pytest.fixture
def controller(tmp_path: Path, database_url: str) -> Iterator[Controller]:
    """A controller that accepts jobs. Its reconciler is not started, so nothing happens to them."""
    url = "" if database_url.startswith("sqlite") else database_url
    daemon = Daemon(Settings(tmp_path, database_url=url, quotas=Quotas(max_jobs_per_user=MAX_JOBS)), ManualClock())
    yield Controller(TestClient(create_app(daemon.api_context), base_url="http://127.0.0.1"), daemon)
    daemon.socket.close()
    daemon.close()


def test_quota__rejects_more_jobs_until_some_have_ended(controller: Controller) -> None:
    first = controller.launch(num_jobs=2, key="k")
    assert first.status_code == 201
    rejected = controller.launch(num_jobs=2)
    assert rejected.status_code == 429
    assert rejected.json()["error"] == {
        "message": f"ada has 2 jobs that have not ended; with 2 more there would be over {MAX_JOBS}",
        "where": "user",
        "fix": "wait until some have ended, cancel some, or raise limits.max_jobs_per_user in config.yaml",
    }
    assert controller.jobs() == 2, "all or none"
    assert controller.launch().status_code == 201
    assert controller.launch().status_code == 429
    assert controller.launch("bob").status_code == 201, "other users are not affected"
    resubmitted = controller.launch(num_jobs=2, key="k")
    assert (resubmitted.status_code, resubmitted.json()["job_ids"]) == (201, first.json()["job_ids"])
    controller.end(first.json()["job_id"])
    assert controller.launch().status_code == 201


def test_quota__holds_for_concurrent_submissions(controller: Controller) -> None:
    with ThreadPoolExecutor(8) as threads:
        statuses = list(threads.map(lambda _: controller.launch().status_code, range(8)))
    assert sorted(statuses) == [201] * MAX_JOBS + [429] * (8 - MAX_JOBS)
    assert controller.jobs() == MAX_JOBS


def test_accept_all__returns_a_result_for_each_submission(controller: Controller) -> None:
    def submission(user: str, key: str | None = None, *, num_jobs: int = 1, task: str = "true") -> Submission:
        return Submission("j", [{"run": task}], user, key, num_jobs)

    before = controller.launch("eve", key="known").json()
    submissions = [
        submission("ada", num_jobs=2),
        Submission("j", [{"resources": {"cpus": "many"}}], "ada", None),
        submission("ada", num_jobs=2),
        submission("bob", key="twice"),
        submission("bob", key="twice"),
        submission("eve", key="known"),
        submission("eve"),
    ]
    results = controller.daemon.api_context.submissions.accept_all(submissions)
    assert [one.status for one in results if isinstance(one, RequestRejected)] == [400, 429]
    ids = {i: one.job_ids for i, one in enumerate(results) if isinstance(one, Accepted)}
    assert list(ids) == [0, 3, 4, 5, 6]
    assert ids[3] == ids[4]
    assert ids[5] == tuple(before["job_ids"])
    new = [*ids[0], *ids[3], *ids[6]]
    assert (len(new), len(set(new)), controller.jobs()) == (4, 4, 5)


def test_resubmission__of_a_job_that_would_be_rejected_now_returns_the_job(controller: Controller) -> None:
    def launch(deadline: str) -> Response:
        task = {"run": "true", "resources": {"job_recovery": {"deadline": deadline}}}
        return controller.launch(key="k", tasks=[task])

    first = launch("2100-01-01T00:00:00Z").json()
    again = launch("2001-01-01T00:00:00Z")
    assert (again.status_code, again.json()["job_ids"]) == (201, first["job_ids"])
    assert again.json()["name"] == "j"


def test_accepted_view__equals_the_stored_one(controller: Controller) -> None:
    recovery = {"strategy": "FAILOVER", "max_restarts_on_errors": 3}
    configs = [
        [{"run": "true"}],
        [{"run": "a", "num_nodes": 3, "resources": {"cpus": "4+", "memory": "2+", "disk_size": 100}}],
        [{"run": "a", "resources": {"any_of": [{"cpus": 2, "use_spot": True}, {"cpus": 1}], "job_recovery": recovery}}],
        [{"run": "a", "resources": {"job_recovery": {"deadline": "60h", "work": "48h", "patience": 0.1}}}],
        [{"name": "one", "run": "a", "envs": {"A": "1"}}, {"name": "two", "run": "b", "secrets": {"T": "x"}}],
    ]
    service = controller.daemon.api_context.submissions
    results = service.accept_all([Submission("j", tasks, f"user-{i}", None) for i, tasks in enumerate(configs)])
    assert not [one for one in results if isinstance(one, Exception)]
    views = {id: view for one in results if isinstance(one, Accepted) for id, view in one.views.items()}
    with controller.daemon.database.connect() as conn:
        assert jobs.load(conn, list(views)) == views


def test_overload__is_rejected_with_retry_after(controller: Controller) -> None:
    for _ in range(5_001):
        controller.daemon.inbox.recheck()
    response = controller.launch()
    assert (response.status_code, response.headers["Retry-After"]) == (503, "5")
    assert "existing jobs are not affected" in response.json()["error"]["message"]
    assert controller.jobs() == 0
    while controller.daemon.reconciler.run_once(block=False):
        pass
    assert controller.launch().status_code == 201


def test_batch__is_rejected_if_its_jobs_together_are_too_large(controller: Controller) -> None:
    tasks, num_jobs = [{"run": "true", "envs": {"LARGE": "x" * 100_000}}], MAX_BATCH_BYTES // 100_000
    rejected = controller.launch(user="", tasks=tasks, num_jobs=num_jobs)
    assert rejected.status_code == 400
    error = rejected.json()["error"]
    assert error["where"] == "num_jobs"
    assert "640 jobs with 100 kB of tasks each are 64 MB; one launch may have 64 MB" in error["message"]
    assert controller.jobs() == 0
    assert controller.launch(user="", tasks=tasks, num_jobs=MAX_JOBS).status_code == 201
