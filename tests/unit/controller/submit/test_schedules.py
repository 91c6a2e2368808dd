"""Schedules: what is launched at which time, and what is left out. On both databases."""

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
from perdure.controller.runtime.config.limits import Quotas
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.store import job_schedules
from perdure.controller.store.records.jobs import Job, Task

HOUR = 3600.0


@dataclass(frozen=True)
class Controller:
    client: TestClient
    daemon: Daemon
    clock: ManualClock

    def call(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        headers = {"Authorization": f"Bearer {self.daemon.api_context.keyring.user_token}"}
        answer = self.client.request(method, f"/api/v1/schedules{path}", json=body, headers=headers)
        assert answer.status_code == status, answer.text
        return answer.json()

    def save(self, name: str = "nightly", cron: str = "0 * * * *", status: int = 200, **more: Any) -> Any:
        return self.call("PUT", f"/{name}", {"cron": cron, "tasks": [{"run": "true"}], **more}, status)

    def show(self) -> dict[str, Any]:
        (one,) = self.call("GET", "")["schedules"]
        return dict(one)

    def wait(self, seconds: float) -> None:
        """Let time pass, and look for what is due."""
        self.clock.advance(seconds)
        self.tick()

    def tick(self) -> None:
        self.daemon._schedules.tick()

    def jobs(self) -> list[str]:
        with self.daemon.database.connect() as conn:
            return list(conn.execute(select(Job.c.name).order_by(Job.c.id)).scalars())

    def end_jobs(self) -> None:
        with self.daemon.database.begin() as conn:
            conn.execute(update(Task).values(ended_at=self.clock.now()))


@pytest.fixture
def controller(tmp_path: Path, database_url: str) -> Iterator[Controller]:
    """A controller at the full hour, whose reconciler is not started."""
    url = "" if database_url.startswith("sqlite") else database_url
    clock = ManualClock()
    clock.advance(HOUR - clock.now() % HOUR)
    daemon = Daemon(Settings(tmp_path, database_url=url, quotas=Quotas(max_jobs_per_user=3)), clock)
    yield Controller(TestClient(create_app(daemon.api_context), base_url="http://127.0.0.1"), daemon, clock)
    daemon.socket.close()
    daemon.close()


def test_schedule__launches_a_job_at_each_time(controller: Controller) -> None:
    saved = controller.save(user="ada")
    assert saved["warnings"] == []
    assert (saved["schedule"]["missed"], saved["schedule"]["time_zone"]) == ("once", "UTC")
    controller.wait(HOUR - 1)
    assert controller.jobs() == []
    controller.wait(1)
    assert controller.jobs() == ["nightly"]
    controller.wait(30)
    assert controller.jobs() == ["nightly"]
    controller.end_jobs()
    controller.wait(HOUR)
    assert controller.jobs() == ["nightly", "nightly"]
    assert controller.show()["last_result"] == ""


def test_run__is_left_out_while_the_one_before_has_not_ended(controller: Controller) -> None:
    controller.save()
    controller.wait(HOUR)
    controller.wait(HOUR)
    assert controller.jobs() == ["nightly"]
    assert "had not ended" in controller.show()["last_result"]
    controller.save(overlaps=True)
    controller.wait(HOUR)
    assert controller.jobs() == ["nightly", "nightly"]


@pytest.mark.parametrize(("missed", "launched"), [("once", 1), ("skip", 0)])
def test_missed_runs__are_made_up_for_by_one_or_none(controller: Controller, missed: str, launched: int) -> None:
    controller.save(missed=missed)
    controller.wait(5 * HOUR + 600)
    assert len(controller.jobs()) == launched
    controller.end_jobs()
    controller.wait(HOUR - 600)
    assert len(controller.jobs()) == launched + 1, "the next time counts as always"


def test_death_before_the_record__launches_no_second_job(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.save()
    with monkeypatch.context() as dying:
        dying.setattr(job_schedules, "advance", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            controller.wait(HOUR)
    assert controller.jobs() == ["nightly"]
    controller.tick()
    assert controller.jobs() == ["nightly"]
    assert controller.show()["last_job_id"] is not None


def test_launch_that_is_refused__is_reported_and_tried_at_the_next_time(controller: Controller) -> None:
    controller.save(user="ada", overlaps=True)
    for _ in range(4):
        controller.wait(HOUR)
    assert len(controller.jobs()) == 3
    assert "ada has 3 jobs" in controller.show()["last_result"]


def test_pause__launches_nothing_until_it_is_resumed(controller: Controller) -> None:
    controller.save()
    assert controller.call("POST", "/nightly/pause")["next_at"] is None
    controller.wait(5 * HOUR)
    assert controller.jobs() == []
    assert controller.call("POST", "/nightly/resume")["next_at"] is not None
    controller.tick()
    assert controller.jobs() == [], "nothing is made up for"
    controller.wait(HOUR)
    assert controller.jobs() == ["nightly"]


def test_run__launches_a_job_once_for_each_key(controller: Controller) -> None:
    controller.save()
    first = controller.call("POST", "/nightly/run", {"key": "a"})
    assert controller.call("POST", "/nightly/run", {"key": "a"}) == first
    assert controller.call("POST", "/nightly/run", {"key": "b"}) != first
    assert len(controller.jobs()) == 2
    with controller.daemon.database.connect() as conn:
        keys = list(conn.execute(select(Job.c.idempotency_key)).scalars())
    for key in keys:
        assert controller.call("POST", "/nightly/run", {"key": key}, 400), "no user can send it"


def test_delete__ends_the_schedule(controller: Controller) -> None:
    controller.save()
    assert controller.call("DELETE", "/nightly") == {"schedules": []}
    controller.wait(2 * HOUR)
    assert controller.jobs() == []
    for method, action in (("DELETE", ""), ("POST", "/pause"), ("POST", "/resume")):
        controller.call(method, f"/nightly{action}", status=404)


def test_secrets__are_not_readable_in_the_database(controller: Controller) -> None:
    controller.save(tasks=[{"run": "true", "secrets": {"TOKEN": "sesame"}}])
    with controller.daemon.database.connect() as conn:
        row = job_schedules.find(conn, "nightly")
    assert row is not None
    assert b"sesame" not in bytes(row.tasks)
    controller.wait(HOUR)
    assert controller.jobs() == ["nightly"]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"cron": "0 3 * *"}, "cron"),
        ({"time_zone": "Berlin"}, "time_zone"),
        ({"tasks": [{"run": "true", "resources": {"cpus": "many"}}]}, ""),
        ({"tasks": [{"run": "true", "workdir": {"upload": "0" * 64}}]}, "tasks"),
    ],
    ids=["cron", "zone", "task", "upload"],
)
def test_save__refuses_what_could_never_run(controller: Controller, change: dict[str, Any], where: str) -> None:
    error = controller.save(status=400, **change)["error"]
    assert where in (error["where"] or "")
    assert controller.call("GET", "")["schedules"] == []


def test_schedule__that_is_never_due_is_refused(controller: Controller) -> None:
    error = controller.save(cron="0 0 30 2 *", status=400)["error"]
    assert (error["message"], error["where"]) == ("'0 0 30 2 *' is never due", "cron")
    assert controller.call("GET", "")["schedules"] == []
