"""Lines reach an open page soon, and once each: over a cut network, a killed controller and its restart."""

from __future__ import annotations

import os
import re
import signal
import statistics
import time
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.dashboard.conftest import Dashboard
from e2e.dashboard.test_dashboard import expect
from support.fakes.tcp_relay import Line
from support.helpers.timing import scaled

pytestmark = pytest.mark.slow

LINES = 300
PRINTS = f"""
name: prints
run: |
  python3 -u - <<'PY'
  import random, time
  for number in range({LINES}):
      print(f"number {{number}} printed at {{time.time():.6f}}")
      time.sleep(random.Random(number).uniform(0.01, 0.15))
  PY
"""
# Makes the log so high that all of its lines are in the page, and notes when each of them appeared.
WATCH = """() => {
  document.querySelector(".log-lines").style.height = "9000px";
  window.seen = {};
  const look = () => {
    for (const line of document.querySelectorAll(".line .text")) {
      const match = /^number (\\d+) printed at ([\\d.]+)$/.exec(line.textContent);
      if (match && !(match[1] in window.seen)) window.seen[match[1]] = Date.now() / 1000 - Number(match[2]);
    }
  };
  new MutationObserver(look).observe(document.body, {subtree: true, childList: true, characterData: true});
  look();
}"""


@pytest.fixture
def job_id(dashboard: Dashboard) -> Iterator[int]:
    (dashboard.controller.home / "prints.yaml").write_text(PRINTS)
    dashboard.controller.perdure("jobs", "launch", "-d", "-y", dashboard.controller.home / "prints.yaml")
    job = dashboard.controller.client.jobs(name="prints")["jobs"][0]
    yield int(job["job_id"])
    dashboard.controller.perdure("jobs", "cancel", "-n", "prints", "-y", "--no-graceful", check=False)


def numbers_shown(page: Any) -> list[int]:
    texts = page.locator(".line .text").all_inner_texts()
    return [int(match[1]) for text in texts if (match := re.match(r"number (\d+) printed", text))]


def test_line__is_shown_soon_after_it_was_printed(dashboard: Dashboard, job_id: int) -> None:
    page = dashboard.open(f"/jobs/{job_id}", "prints")
    expect(page.get_by_role("log")).to_contain_text("number 0 printed")
    page.evaluate(WATCH)
    before = set(page.evaluate("() => Object.keys(window.seen)"))
    page.wait_for_function(f"() => {LINES - 1} in window.seen", timeout=scaled(60) * 1000)
    delays = [s for number, s in page.evaluate("() => window.seen").items() if number not in before]
    assert len(delays) > LINES // 2
    cuts = statistics.quantiles(delays, n=100)
    print(f"printed → shown: p50 {cuts[49] * 1000:.0f} ms, p99 {cuts[98] * 1000:.0f} ms of {len(delays)} lines")
    assert cuts[49] < scaled(0.15)
    assert cuts[98] < scaled(0.5)
    assert numbers_shown(page) == list(range(LINES))
    page.close()


def test_lines__are_shown_once_after_the_network_was_cut(dashboard: Dashboard, job_id: int) -> None:
    line = Line(int(dashboard.url.rpartition(":")[2]))
    context = dashboard.new_context()
    page = context.new_page()
    page.goto(dashboard.link().replace(dashboard.url, f"http://127.0.0.1:{line.port}"), wait_until="commit")
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    page.goto(f"http://127.0.0.1:{line.port}/jobs/{job_id}", wait_until="commit")
    expect(page.get_by_role("log")).to_contain_text("number 3 printed")
    page.evaluate(WATCH)
    for number in (40, 120):
        expect(page.get_by_role("log")).to_contain_text(f"number {number} printed")
        line.cut()
        expect(page.locator(".log [role=alert]")).to_contain_text("does not answer")
        line.join()
    page.wait_for_function(f"() => {LINES - 1} in window.seen", timeout=scaled(60) * 1000)
    assert numbers_shown(page) == list(range(LINES))
    dashboard.problems.clear()  # the browser reports the broken connections
    dashboard.asked[:] = [url for url in dashboard.asked if f":{line.port}/" not in url]
    context.close()
    line.close()


def test_lines__are_shown_once_after_the_controller_was_killed(dashboard: Dashboard, job_id: int) -> None:
    page = dashboard.open(f"/jobs/{job_id}", "prints")
    expect(page.get_by_role("log")).to_contain_text("number 30 printed")
    page.evaluate(WATCH)
    pid = dashboard.controller.client.controller()["pid"]
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    expect(page.get_by_text("The controller does not answer. What you see may be old")).to_be_visible()
    assert time.monotonic() - killed_at < scaled(3)
    dashboard.controller.perdure("controller", "start")
    served_at = time.monotonic()
    expect(page.locator(".live.on")).to_be_visible()
    assert time.monotonic() - served_at < scaled(3), "it is live again without a reload"
    page.wait_for_function(f"() => {LINES - 1} in window.seen", timeout=scaled(90) * 1000)
    assert numbers_shown(page) == list(range(LINES))
    expect(page.locator(".live.on")).to_be_visible()
    dashboard.problems.clear()
    page.close()
