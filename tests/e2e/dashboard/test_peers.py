"""A page behind a load balancer of three controllers, two of which are killed while it is open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from e2e.dashboard.test_dashboard import expect
from e2e.dashboard.test_live_lines import numbers_shown
from e2e.peers.cluster import Several, StartCluster
from e2e.peers.conftest import several  # noqa: F401 - a fixture
from support.helpers.timing import scaled

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

LINES = 200
PRINTS = f"""python3 -u -c '
import time
for number in range({LINES}):
    print("number", number, "printed", flush=True)
    time.sleep(0.3)
time.sleep(1000)
'"""


@pytest.fixture
def cluster(several: StartCluster) -> Several:  # noqa: F811
    return several("a", "b", "c")


@pytest.fixture
def signed_in(cluster: Several, browser: Browser) -> Iterator[BrowserContext]:
    """A browser that was signed in at one of the controllers."""
    context = browser.new_context(viewport={"width": 1280, "height": 9000})  # all lines of the log are in the page
    context.set_default_timeout(scaled(30) * 1000)
    page = context.new_page()
    page.goto(f"{cluster.relay.url}/#login={cluster.client.create_sign_in_code()['code']}", wait_until="commit")
    page.get_by_role("heading", name="Jobs", exact=True).wait_for()
    page.close()
    yield context
    context.close()


def test_page__stays_live_while_controllers_are_killed(cluster: Several, signed_in: BrowserContext) -> None:
    job_id = cluster.submit(PRINTS, name="prints")
    cluster.until_status(job_id, "RUNNING")
    page, jobs = signed_in.new_page(), signed_in.new_page()
    jobs.goto(f"{cluster.relay.url}/jobs", wait_until="commit")
    page.goto(f"{cluster.relay.url}/jobs/{job_id}", wait_until="commit")
    expect(page.get_by_role("log")).to_contain_text("number 3 printed")
    page.evaluate("""() => (document.querySelector(".log-lines").style.height = "8000px")""")
    for name, number in (("a", 40), ("b", 90)):
        cluster.kill(name)
        expect(page.get_by_role("log")).to_contain_text(f"number {number} printed")
        expect(page.locator(".live.on")).to_be_visible()
    expect(page.get_by_role("log")).to_contain_text(f"number {LINES - 1} printed")
    assert numbers_shown(page) == list(range(LINES)), "no line is missing, and none is shown twice"
    cluster.until(lambda: cluster.owner(job_id) == "c", "the job's new owner")
    cluster.until_status(job_id, "RUNNING")
    cluster.client.preempt(job_id, notice_s=None)
    expect(page.locator(".mark.preempted").last).to_be_attached()
    row = jobs.get_by_role("row").filter(has=jobs.get_by_role("link", name="prints"))
    expect(row.locator(".recov")).to_have_text("1")


def test_preemption__is_shown_by_a_controller_that_does_not_own_the_job(
    cluster: Several, signed_in: BrowserContext
) -> None:
    """Whichever controller the browser's stream has reached, another one owns some of these jobs."""
    job_ids = [cluster.submit("sleep 1000", name=f"owned-{name}", client=cluster.client_of(name)) for name in "abc"]
    page = signed_in.new_page()
    page.goto(f"{cluster.relay.url}/jobs", wait_until="commit")
    page.evaluate("() => (window.isSamePage = true)")
    for job_id, name in zip(job_ids, "abc", strict=True):
        cluster.until_status(job_id, "RUNNING")
        cluster.client.preempt(job_id, notice_s=None)
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=f"owned-{name}"))
        expect(row.locator(".recov")).to_have_text("1")
    assert page.evaluate("() => window.isSamePage")
