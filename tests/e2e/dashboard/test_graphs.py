"""The graphs of a job in a real browser: a program that reports its loss, and a stand-in for nvidia-smi."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.dashboard.conftest import CONFIG, TAGS, Dashboard
from e2e.dashboard.test_dashboard import expect
from perdure.controller.api.dashboard.responses import MetricsOverTime
from support.helpers.controllers import running_controller

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

#: Its `nvidia-smi` is not in a temporary folder: machines of the local cloud have a /tmp of their own.
PROGRAMS = Path(__file__).parent / "programs"
TASK = """
name: trains
resources: {accelerators: "V100:2", use_spot: true}
run: |
  python3 - <<'PY'
  import time
  from perdure.checkpoint import report_progress
  for step in range(100000):
      report_progress(1000 + step, loss=2.5)
      time.sleep(0.1)
  PY
"""


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Dashboard]:
    home = tmp_path_factory.mktemp("home")
    (home / "config.yaml").write_text(CONFIG)
    (home / "trains.yaml").write_text(TASK)
    with running_controller(home, environ={"PATH": f"{PROGRAMS}:{os.environ['PATH']}"}) as controller:
        one = Dashboard(controller, browser, controller.client.endpoint.url)
        one.context = one.sign_in()
        yield one
        one.context.close()


def test_graphs__show_machine_and_program_over_a_preemption(dashboard: Dashboard, axe: str) -> None:
    controller, home = dashboard.controller, dashboard.controller.home
    controller.perdure("jobs", "launch", "-d", "-y", home / "trains.yaml")
    dashboard.wait_for_status(1, "RUNNING")
    page = dashboard.open("/jobs/1?tab=graphs", "trains")
    expect(page.get_by_text("No machine has reported yet")).to_be_visible()
    loss = page.get_by_role("img", name=re.compile(r"^loss over time, from 2\.5 to 2\.5, last 2\.5$"))
    loss.wait_for(timeout=60_000)  # it is read every 20 s
    expect(page.get_by_role("img", name=re.compile(r"^GPU over time, from 50% to 50%"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile(r"^GPU memory over time, from 50% to 50%"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile(r"^GPU power over time, .* last 401 W$"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile(r"^Hottest GPU over time, .* last 64 °C$"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile(r"^Step over time, from 1,0\d\d"))).to_be_visible()
    controller.perdure("jobs", "preempt", 1, "--kill")
    page.get_by_text("As a table").click()
    second = page.get_by_role("region", name="Metrics as a table").get_by_role("row").nth(2)
    second.wait_for(timeout=90_000)
    expect(second.get_by_role("cell").first).to_have_text("2")
    expect(second).to_contain_text("50%")
    page.evaluate(axe)
    violations = page.evaluate("tags => axe.run(document, {runOnly: tags})", TAGS)["violations"]
    assert not violations, [one["id"] for one in violations]
    assert not dashboard.problems
    # What the page shows survives a restart of the controller: all of it is in the database by then.
    before = controller.client.call(MetricsOverTime, "GET", "/jobs/1/metrics")["series"]
    controller.perdure("controller", "stop")
    controller.perdure("controller", "start")
    after = controller.client.call(MetricsOverTime, "GET", "/jobs/1/metrics")["series"]
    assert [one["generation"] for one in before] == [one["generation"] for one in after] == [1, 2]
    assert after[0]["reported"] == before[0]["reported"]
    controller.perdure("jobs", "cancel", 1, "-y")
    page.close()
