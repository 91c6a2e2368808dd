"""Sweeps and schedules in a real browser: all that the command line can do to them."""

from __future__ import annotations

import pytest

from e2e.dashboard.conftest import TAGS, Dashboard
from e2e.dashboard.test_dashboard import expect

pytestmark = pytest.mark.slow

SWEEP = """
name: tune
sweep: {SEED: [1, 2, 3]}
run: |
  case $SEED in 1) true;; 2) exit 3;; 3) sleep 1000;; esac
"""
YAML = "name: nightly\nresources: {cpus: 1+}\nrun: sleep 1000\n"


def assert_accessible(page: object, axe: str) -> None:
    page.evaluate(axe)  # type: ignore[attr-defined]
    violations = page.evaluate("tags => axe.run(document, {runOnly: tags})", TAGS)["violations"]  # type: ignore[attr-defined]
    assert not violations, [one["id"] for one in violations]


def test_sweep__is_shown_retried_and_cancelled(dashboard: Dashboard, axe: str) -> None:
    path = dashboard.controller.home / "tune.yaml"
    path.write_text(SWEEP)
    dashboard.controller.perdure("jobs", "launch", "-d", "-y", path)
    first = min(job["job_id"] for job in dashboard.controller.client.jobs(name="tune", limit=10)["jobs"])
    for job_id, status in enumerate(("SUCCEEDED", "FAILED", "RUNNING"), start=first):
        dashboard.wait_for_status(job_id, status)
    page = dashboard.open(f"/jobs/{first}", "tune")
    page.get_by_role("link", name=str(first), exact=True).click()
    expect(page.get_by_role("region", name="Jobs of the sweep").get_by_role("row")).to_have_count(4)
    row = page.get_by_role("row").nth(2)
    expect(row).to_contain_text("exited with code 3")
    assert_accessible(page, axe)
    page.get_by_role("button", name="Launch 1 failed one again").click()
    page.get_by_role("button", name="Launch", exact=True).click()
    expect(row.get_by_role("link")).to_have_text(str(first + 3))
    dashboard.wait_for_status(first + 3, "FAILED")
    page.get_by_role("button", name="Cancel 1 …").click()
    page.get_by_role("button", name="Cancel them").click()
    expect(page.get_by_role("row").nth(3)).to_contain_text("cancelled")
    page.close()


def test_schedule__is_made_run_paused_and_removed(dashboard: Dashboard, axe: str) -> None:
    page = dashboard.open("/launch", "Launch a job")
    page.get_by_label("Task YAML").fill(YAML)
    page.get_by_label("Schedule (cron)").fill("0 3 * * 8")
    page.get_by_role("button", name="Save the schedule").click()
    expect(page.get_by_role("alert")).to_be_visible()  # there is no such day
    dashboard.problems.clear()  # the browser reports the 400
    page.get_by_label("Schedule (cron)").fill("0 3 * * *")
    page.get_by_role("button", name="Save the schedule").click()
    row = page.get_by_role("row").filter(has_text="nightly")
    expect(row).to_contain_text("0 3 * * *")
    assert_accessible(page, axe)
    page.get_by_role("button", name="Pause: nightly").click()
    expect(row).to_contain_text("paused")
    page.get_by_role("button", name="Resume: nightly").click()
    expect(row).not_to_contain_text("paused")
    page.get_by_role("button", name="Run now: nightly").click()
    expect(page.get_by_role("heading", name="nightly", level=1)).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("d")
    page.get_by_role("link", name="nightly").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.go_back()
    page.get_by_role("button", name="Remove: nightly").click()
    page.get_by_role("button", name="Remove", exact=True).click()
    expect(page.get_by_role("heading", name="No schedules")).to_be_visible()
    page.close()
