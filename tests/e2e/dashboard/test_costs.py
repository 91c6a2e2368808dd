"""A job costs the same on its page, in the list, among the savings, in the API and on the command line."""

from __future__ import annotations

import json
import re

import pytest

from e2e.dashboard.conftest import Dashboard
from e2e.dashboard.test_dashboard import expect
from perdure.cli.output.text import money

pytestmark = pytest.mark.slow

TASK = "name: costs\nresources: {accelerators: 'V100:8', use_spot: true}\nrun: sleep 5\n"


def test_cost__is_the_same_everywhere(dashboard: Dashboard) -> None:
    controller = dashboard.controller
    (controller.home / "costs.yaml").write_text(TASK)
    controller.perdure("jobs", "launch", "-d", "-y", controller.home / "costs.yaml")
    dashboard.wait_for_status(1, "RUNNING")
    controller.perdure("jobs", "preempt", 1, "--kill")
    dashboard.wait_for_status(1, "SUCCEEDED")
    controller.until(lambda: controller.job(1)["cleanup"] is None, "the end of its machines")
    job = controller.job(1)
    assert job["recovery_count"] == 1
    assert job["cost_usd"] >= 0.01, "there is something to compare to the cent"
    assert sum(attempt["cost_usd"] for attempt in job["attempts"]) == pytest.approx(job["cost_usd"])
    cost, saved = money(job["cost_usd"]), money(job["on_demand_cost_usd"] - job["cost_usd"])

    page = dashboard.open("/jobs/1", "costs")
    expect(page.locator(".facts div").first).to_have_text(re.compile(rf"^Cost\{cost}saved \{saved} "))
    page.goto(f"{dashboard.url}/jobs?status=all", wait_until="commit")
    expect(page.get_by_role("row").filter(has_text="costs").locator(".cost")).to_have_text(re.compile(rf"^\{cost}"))
    page.goto(f"{dashboard.url}/savings", wait_until="commit")
    row = page.get_by_role("region", name="Most expensive jobs: table").get_by_role("row").filter(has_text="costs (1)")
    expect(row).to_contain_text(cost)
    expect(page.locator(".figures")).to_contain_text(f"Spent{cost}")
    page.close()

    (listed,) = json.loads(controller.perdure("jobs", "queue", "-a", "-o", "json").stdout)
    assert listed["cost_usd"] == pytest.approx(job["cost_usd"])
    assert cost in controller.perdure("jobs", "show", 1).stdout
    assert cost in controller.perdure("jobs", "queue", "-a").stdout
