"""Nothing on a page moves while it loads: what Lighthouse calls layout shift."""

from __future__ import annotations

import json

import pytest

from e2e.dashboard.conftest import Dashboard
from e2e.dashboard.test_dashboard import TABS, VIEWS

pytestmark = pytest.mark.slow

MAX_SHIFT = 0.02
OBSERVE = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries())
    if (!entry.hadRecentInput)
      window.shifts.push([entry.value, entry.sources.map((one) => one.node?.outerHTML?.slice(0, 120)).join(" | ")]);
}).observe({type: "layout-shift", buffered: true});
"""


@pytest.mark.parametrize("width", [390, 1280])
def test_pages__do_not_shift(dashboard: Dashboard, width: int) -> None:
    job_id = dashboard.launch(f"shifts-{width}")
    dashboard.wait_for_status(job_id, "RUNNING")
    context = dashboard.sign_in(viewport={"width": width, "height": 900})
    context.add_init_script(OBSERVE)
    shifted = {}
    for view in [*VIEWS, *(f"/jobs/{job_id}{tab}" for tab in TABS)]:
        page = context.new_page()
        page.goto(dashboard.url + view, wait_until="commit")
        page.locator("main table, main .empty, main form, main .log, main .chart, main pre").first.wait_for()
        page.wait_for_timeout(1500)  # also what comes with later answers may move something
        shifts = page.evaluate("() => window.shifts")
        if sum(value for value, _ in shifts) > MAX_SHIFT:
            shifted[view] = shifts
        page.close()
    assert not shifted, json.dumps(shifted, indent=1)
    dashboard.controller.perdure("jobs", "cancel", job_id, "-y", "--no-graceful")
    context.close()
