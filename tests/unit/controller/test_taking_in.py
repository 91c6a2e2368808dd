"""How many jobs a user may have, and a controller that has fallen behind: over its API, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from perdure.controller.api.app import create_app
from perdure.controller.bounds import Bounds
from perdure.controller.clock import ManualClock
from perdure.controller.daemon import Daemon
from perdure.controller.refusing import Refused
from perdure.controller.settings import Settings
from perdure.controller.store import jobs
from perdure.controller.store.jobs import Task
from perdure.controller.submission import Accepted, Submission

MOST = 3


@dataclass(frozen=True)
class Controller:
    client: TestClient
    daemon: Daemon

    def launch(self, user: str = "ada", **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.daemon.services.keyring.user_token}"}
        body = {"name": "j", "tasks": [{"run": "true"}], "user": user, **more}
        return self.client.post("/api/v1/jobs", json=body, headers=headers)

    def jobs(self) -> int:
        headers = {"Authorization": f"Bearer {self.daemon.services.keyring.user_token}"}
        return int(self.client.get("/api/v1/jobs", headers=headers).json()["total"])

    def end(self, job_id: int) -> None:
        with self.daemon.database.begin() as conn:
            conn.execute(update(Task).where(Task.c.job_id == job_id).values(status="SUCCEEDED"))


@pytest.fixture
def controller(tmp_path: Path, database_url: str) -> Iterator[Controller]:
    """It takes jobs in; its reconciler is not started, so none goes any further."""
    url = "" if database_url.startswith("sqlite") else database_url
    daemon = Daemon(Settings(tmp_path, database_url=url, bounds=Bounds(most_jobs_per_user=MOST)), ManualClock())
    yield Controller(TestClient(create_app(daemon.services), base_url="http://127.0.0.1"), daemon)
    daemon.socket.close()
    daemon.close()


def test_a_user_has_so_many_jobs_and_no_more_until_some_have_ended(controller: Controller) -> None:
    first = controller.launch(num_jobs=2, key="k")
    assert first.status_code == 201
    refused = controller.launch(num_jobs=2)
    assert refused.status_code == 429
    assert refused.json()["error"] == {
        "message": f"ada has 2 jobs that have not ended; with 2 more there would be over {MOST}",
        "where": "user",
        "fix": "wait until some have ended, cancel some, or raise limits.most_jobs_per_user in config.yaml",
    }
    assert controller.jobs() == 2, "all or none"
    assert controller.launch().status_code == 201
    assert controller.launch().status_code == 429
    assert controller.launch("bob").status_code == 201, "others are not concerned"
    again = controller.launch(num_jobs=2, key="k")
    assert (again.status_code, again.json()["job_ids"]) == (201, first.json()["job_ids"])
    controller.end(first.json()["job_id"])
    assert controller.launch().status_code == 201


def test_those_who_come_at_the_same_moment_are_counted_one_by_one(controller: Controller) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: controller.launch().status_code, range(8)))
    assert sorted(answers) == [201] * MOST + [429] * (8 - MOST)
    assert controller.jobs() == MOST


def test_those_who_are_accepted_together_get_each_their_own_answer(controller: Controller) -> None:
    def asked(user: str, key: str | None = None, *, num_jobs: int = 1, task: str = "true") -> Submission:
        return Submission("j", [{"run": task}], user, key, num_jobs)

    before = controller.launch("eve", key="known").json()
    wanted = [
        asked("ada", num_jobs=2),
        Submission("j", [{"resources": {"cpus": "many"}}], "ada", None),
        asked("ada", num_jobs=2),
        asked("bob", key="twice"),
        asked("bob", key="twice"),
        asked("eve", key="known"),
        asked("eve"),
    ]
    told = controller.daemon.services.submissions.accept_all(wanted)
    assert [one.status for one in told if isinstance(one, Refused)] == [400, 429]
    ids = {i: one.job_ids for i, one in enumerate(told) if isinstance(one, Accepted)}
    assert list(ids) == [0, 3, 4, 5, 6]
    assert ids[3] == ids[4]
    assert ids[5] == tuple(before["job_ids"])
    new = [*ids[0], *ids[3], *ids[6]]
    assert (len(new), len(set(new)), controller.jobs()) == (4, 4, 5)


def test_a_job_is_taken_up_as_it_would_be_read(controller: Controller) -> None:
    asked = {"strategy": "FAILOVER", "max_restarts_on_errors": 3}
    wanted = [
        [{"run": "true"}],
        [{"run": "a", "num_nodes": 3, "resources": {"cpus": "4+", "memory": "2+", "disk_size": 100}}],
        [{"run": "a", "resources": {"any_of": [{"cpus": 2, "use_spot": True}, {"cpus": 1}], "job_recovery": asked}}],
        [{"run": "a", "resources": {"job_recovery": {"deadline": "60h", "work": "48h", "patience": 0.1}}}],
        [{"name": "one", "run": "a", "envs": {"A": "1"}}, {"name": "two", "run": "b", "secrets": {"T": "x"}}],
    ]
    submissions = controller.daemon.services.submissions
    told = submissions.accept_all([Submission("j", tasks, f"user-{i}", None) for i, tasks in enumerate(wanted)])
    assert not [one for one in told if isinstance(one, Exception)]
    views = {id: view for one in told if isinstance(one, Accepted) for id, view in one.views.items()}
    with controller.daemon.database.connect() as conn:
        assert jobs.load(conn, list(views)) == views


def test_a_controller_that_has_fallen_behind_asks_for_time(controller: Controller) -> None:
    for _ in range(5_001):
        controller.daemon.reconciler.recheck()
    answer = controller.launch()
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert "those it has are safe" in answer.json()["error"]["message"]
    assert controller.jobs() == 0
    while controller.daemon.reconciler.turn(block=False):
        pass
    assert controller.launch().status_code == 201
