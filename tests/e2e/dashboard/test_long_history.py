"""A job that has had a thousand attempts and fifteen thousand events: its page loads and draws a few of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from e2e.dashboard.conftest import Dashboard
from e2e.dashboard.test_dashboard import expect
from support.helpers.timing import scaled

pytestmark = pytest.mark.slow

ATTEMPTS, EVENTS = 1_000, 15_000
MAX_ROWS, MAX_BYTES, MAX_S = 60, 300_000, 1.0


@pytest.fixture(scope="module")
def job_id(dashboard: Dashboard) -> int:
    """A real attempt, with copies of it and of its events before it."""
    job_id = dashboard.launch("veteran")
    dashboard.wait_for_status(job_id, "RUNNING")
    dashboard.controller.perdure("jobs", "cancel", job_id, "-y", "--no-graceful")
    dashboard.wait_for_status(job_id, "CANCELLED")
    dashboard.controller.until(lambda: dashboard.controller.job(job_id)["cleanup"] is None, "the end of its machine")
    copy_attempts(dashboard.controller.home / "perdure.db", job_id)
    return job_id


def copy_attempts(database: Path, job_id: int) -> None:
    """Attempt 1 becomes the last one; those before it, an hour apart, were preempted."""
    engine = create_engine(f"sqlite:///{database}")
    with engine.begin() as conn:
        conn.execute(text("PRAGMA busy_timeout = 60000"))
        for table in ("attempt", "node", "event"):
            conn.execute(
                text(f"UPDATE {table} SET generation = {ATTEMPTS} WHERE job_id = :job AND generation = 1"),
                {"job": job_id},
            )
        for table in ("attempt", "node"):
            names = [row[1] for row in conn.execute(text(f"PRAGMA table_info({table})"))]
            change = {"generation": "s.i", "reason": "'PREEMPTED'", "instance_id": "instance_id || '-' || s.i"}
            change |= {n: f"{n} - 3600 * ({ATTEMPTS} - s.i)" for n in names if n.endswith("_at")}
            values = ", ".join(change.get(name, f't."{name}"') for name in names)
            conn.execute(
                text(
                    f"WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {ATTEMPTS - 1}) "
                    f"INSERT INTO {table} SELECT {values} FROM s CROSS JOIN {table} AS t "
                    f"WHERE t.job_id = :job AND t.generation = {ATTEMPTS}"
                ),
                {"job": job_id},
            )
        own = conn.execute(
            text("SELECT task_index, at, kind, rank, reason, message, data FROM event WHERE job_id = :job ORDER BY id"),
            {"job": job_id},
        ).all()
        conn.execute(text("DELETE FROM event WHERE job_id = :job"), {"job": job_id})
        rows = [
            {**row._mapping, "job": job_id, "generation": n, "at": row.at - 3600 * (ATTEMPTS - n)}
            for n in range(1, ATTEMPTS + 1)
            for row in (own * EVENTS)[: EVENTS // ATTEMPTS]
        ]
        conn.execute(
            text(
                "INSERT INTO event (job_id, task_index, generation, at, kind, rank, reason, message, data) "
                "VALUES (:job, :task_index, :generation, :at, :kind, :rank, :reason, :message, :data)"
            ),
            rows,
        )
    engine.dispose()


def test_page__of_a_thousand_attempts_is_small_and_quick(dashboard: Dashboard, job_id: int) -> None:
    page = dashboard.context.new_page()
    session = dashboard.context.new_cdp_session(page)
    session.send("Network.enable")
    sizes: list[float] = []
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    began = time.monotonic()
    page.goto(f"{dashboard.url}/jobs/{job_id}", wait_until="commit")
    expect(page.get_by_text("The newest 30 of 1,000 attempts")).to_be_visible()
    expect(page.locator(".bar").first).to_be_attached()
    took_s = time.monotonic() - began
    assert took_s < scaled(MAX_S)
    page.wait_for_timeout(500)
    assert sum(sizes) < MAX_BYTES
    assert page.locator("tr").count() <= MAX_ROWS
    page.get_by_role("link", name="Timeline").click()
    expect(page.get_by_role("region", name="Timeline").get_by_role("row")).to_have_count(51)
    expect(page.locator(".pager", has_text="Older")).to_contain_text("1–50 of 15,000")
    assert page.locator("tr").count() <= MAX_ROWS + 1
    page.get_by_role("button", name="Older").click()
    expect(page.locator(".pager", has_text="Older")).to_contain_text("51–100 of 15,000")
    page.get_by_label("Filter the timeline").fill("attempt.requested")
    expect(page.locator(".pager", has_text="Older")).to_contain_text("1–50 of")
    expect(page.get_by_role("region", name="Timeline").locator("tbody tr").first).to_contain_text("attempt.requested")
    page.get_by_role("button", name="Load all").click()
    expect(page.get_by_text("The newest 30 of")).to_have_count(0)
    expect(page.locator(".pager", has_text="Earlier")).to_contain_text("993–1,000 of 1,000")
    page.get_by_role("button", name="Earlier").click()
    expect(page.locator(".pager", has_text="Earlier")).to_contain_text("985–992 of 1,000")
    page.close()
