"""The savings of a page that is open follow what happens to jobs."""

from __future__ import annotations

import pytest

from e2e.dashboard.conftest import Dashboard
from e2e.dashboard.test_dashboard import expect

pytestmark = pytest.mark.slow

# On a busy machine, the limit of a wait is longer than the minute after which the page asks anyway.
NEVER_ASK_ANYWAY = """const start = setInterval;
window.setInterval = (act, ms) => (ms < 60000 ? start(act, ms) : 0);"""


def test_savings__follow_the_events_of_jobs(dashboard: Dashboard) -> None:
    page = dashboard.context.new_page()
    page.add_init_script(NEVER_ASK_ANYWAY)
    page.goto(f"{dashboard.url}/savings", wait_until="commit")
    page.get_by_role("heading", name="Nothing was bought").wait_for()
    job_id = dashboard.launch("bought")
    expect(page.get_by_role("link", name=f"bought ({job_id})")).to_be_visible()
    expect(page.locator(".figures .part").first).to_contain_text("by jobs that still run")
    dashboard.controller.perdure("jobs", "cancel", job_id, "-y", "--no-graceful")
    expect(page.locator(".figures .part").first).to_have_text("by jobs that have ended")
    page.close()
