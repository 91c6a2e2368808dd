"""A job with a long history: its newest attempts with totals of all, and its timeline by pages."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, update

from perdure.controller.store.records.jobs import Attempt, Task, TimelineEvent
from unit.controller.api.dashboard.conftest import Dashboard
from unit.controller.api.dashboard.test_fleet import add_job

KINDS = ("attempt.requested", "attempt.lost", "checkpoint.durable")


@pytest.fixture
def job_id(dashboard: Dashboard) -> int:
    """Twelve attempts, each with an event of every kind; all but the last were preempted."""
    job_id = add_job(dashboard, ["GONE"] * 11 + ["RUNNING"])
    with dashboard.daemon.database.begin() as conn:
        lost = (Attempt.c.job_id == job_id) & (Attempt.c.generation < 12)
        conn.execute(update(Attempt).where(lost).values(reason="PREEMPTED", running_at=dashboard.clock.now()))
        for generation in range(1, 13):
            for kind in KINDS:
                row = {
                    "job_id": job_id,
                    "task_index": 0,
                    "generation": generation,
                    "kind": kind,
                    "message": "100%_sure",
                }
                conn.execute(insert(TimelineEvent).values(**row, at=dashboard.clock.now(), data={"step": generation}))
    return job_id


def test_recent__has_the_newest_attempts_and_totals_of_all(dashboard: Dashboard, job_id: int) -> None:
    job = dashboard.caller.get(f"/api/v1/jobs/{job_id}/recent?attempts=3").json()
    assert [attempt["generation"] for attempt in job["attempts"]] == [10, 11, 12]
    assert all(len(attempt["nodes"]) == 1 for attempt in job["attempts"])
    assert (job["num_attempts"], job["num_events"], job["preemptions"]) == (12, 36, 11)
    whole = dashboard.caller.get(f"/api/v1/jobs/{job_id}").json()
    assert job["attempts"] == whole["attempts"][-3:]
    assert job["timeline"] == whole["timeline"]
    assert {name: job[name] for name in whole if name not in ("attempts", "now")} == {
        name: whole[name] for name in whole if name not in ("attempts", "now")
    }


def test_recent__says_that_lost_work_is_not_known_without_checkpoints(dashboard: Dashboard, job_id: int) -> None:
    with dashboard.daemon.database.begin() as conn:
        conn.execute(update(Task).where(Task.c.job_id == job_id).values(recovery_count=11, saved_s=None))
    job = dashboard.caller.get(f"/api/v1/jobs/{job_id}/recent").json()
    assert (job["lost_s"], job["lost_usd"]) == (None, None)
    with dashboard.daemon.database.begin() as conn:
        changes = {"saved_s": 5.0, "run_seconds": 7200.0, "resumed_s": 3600.0, "last_offer": {"price_per_hour": 2.0}}
        conn.execute(update(Task).where(Task.c.job_id == job_id).values(**changes))
    job = dashboard.caller.get(f"/api/v1/jobs/{job_id}/recent").json()
    assert (job["lost_s"], job["lost_usd"]) == (3600.0, 2.0)


def test_timeline__comes_by_pages(dashboard: Dashboard, job_id: int) -> None:
    url = f"/api/v1/jobs/{job_id}/timeline"
    first = dashboard.caller.get(url, params={"limit": 20}).json()
    rest = dashboard.caller.get(url, params={"limit": 20, "before": first["entries"][-1]["id"]}).json()
    entries = [*first["entries"], *rest["entries"]]
    assert (first["num_matching"], first["num_checkpoints"], len(entries)) == (36, 12, 36)
    without_ids = [{name: value for name, value in entry.items() if name != "id"} for entry in reversed(entries)]
    assert without_ids == dashboard.caller.get(f"/api/v1/jobs/{job_id}").json()["timeline"]


@pytest.mark.parametrize(
    ("query", "matching"),
    [
        ("checkpoints=0", 24),
        ("text=LOST", 12),
        ("text=100%25_SURE", 36),
        ("text=1000_sure", 0),
        ("text=100%25xsure", 0),
    ],
)
def test_timeline__is_filtered(dashboard: Dashboard, job_id: int, query: str, matching: int) -> None:
    page = dashboard.caller.get(f"/api/v1/jobs/{job_id}/timeline?{query}").json()
    assert page["num_matching"] == len(page["entries"]) == matching


def test_timeline__finds_a_capital_letter_outside_of_ascii(dashboard: Dashboard, job_id: int) -> None:
    with dashboard.daemon.database.begin() as conn:
        conn.execute(update(TimelineEvent).where(TimelineEvent.c.generation == 1).values(message="zone É is full"))
    page = dashboard.caller.get(f"/api/v1/jobs/{job_id}/timeline", params={"text": "zone É"}).json()
    assert page["num_matching"] == 3


def test_history__of_a_job_that_does_not_exist_is_404(dashboard: Dashboard) -> None:
    for part in ("recent", "timeline"):
        assert dashboard.caller.get(f"/api/v1/jobs/999/{part}").status_code == 404
