"""The dashboard in a real browser: sign in, launch a job, see it preempted, read its log, cancel it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from e2e.dashboard.conftest import TAGS, Dashboard, playwright
from perdure.sdk.connection import api_types
from support.helpers.timing import scaled, wait_until

VIEWS = [
    "/jobs",
    "/jobs?status=all",
    "/jobs?q=no-such-job",
    "/launch",
    "/market",
    "/savings",
    "/nodes",
    "/controllers",
    "/schedules",
]
# How many milliseconds the slowest request has waited and taken, without the stream.
SLOWEST = """() => Math.max(0, ...performance.getEntriesByType("resource")
  .filter((one) => !one.name.endsWith("/events")).map((one) => one.duration))"""
TABS = ["", "?tab=timeline", "?tab=graphs", "?tab=yaml"]


def expect(locator: Any) -> Any:
    playwright.expect.set_options(timeout=scaled(15) * 1000)
    return playwright.expect(locator)


@pytest.fixture(scope="module")
def preempted(dashboard: Dashboard) -> int:
    """A job that was preempted once and runs again."""
    job_id = dashboard.launch("preempted")
    dashboard.wait_for_status(job_id, "RUNNING")
    dashboard.controller.perdure("jobs", "preempt", job_id, "--kill")
    dashboard.controller.until(
        lambda: (job := dashboard.controller.job(job_id))["status"] == "RUNNING" and job["recovery_count"] == 1,
        "the job to run again",
    )
    return job_id


def test_sign_in__link_works_once_and_leaves_no_trace(dashboard: Dashboard) -> None:
    link = dashboard.link()
    first = dashboard.new_context()
    page = first.new_page()
    page.goto(link, wait_until="commit")
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    assert "login" not in page.url
    (cookie,) = first.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    second = dashboard.new_context()
    page = second.new_page()
    page.goto(link, wait_until="commit")
    expect(page.get_by_role("alert")).to_contain_text("used before")
    code = dashboard.link()
    page.get_by_label("Or paste the link").fill(code)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    dashboard.problems.clear()  # the browser reports the 401s
    first.close()
    second.close()


def test_job__is_launched_preempted_read_and_cancelled(dashboard: Dashboard) -> None:
    page = dashboard.open("/launch", "Launch a job")
    page.get_by_label("Task YAML").fill(
        "name: by-browser\nresources: {use_spot: true}\n"
        "run: |\n  for i in $(seq 100000); do echo line $i; sleep 0.1; done\n"
    )
    page.get_by_role("button", name="Show what it would buy").click()
    expect(page.get_by_role("region", name="Offers for by-browser")).to_contain_text("local-east-a")
    page.get_by_role("button", name="Launch", exact=True).click()
    expect(page.get_by_role("heading", name="by-browser", level=1)).to_be_visible()
    expect(page.locator(".sentence")).to_contain_text("in local-east-a.")
    expect(page.get_by_role("log")).to_contain_text("line 1")

    page.get_by_role("button", name="Preempt").click()
    page.get_by_label("Without a notice").check()
    page.get_by_role("dialog").get_by_role("button", name="Preempt").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("link", name=re.compile("First attempt, .* ended: preempted"))).to_be_visible()
    expect(page.locator(".mark.preempted").last).to_be_attached()
    expect(page.locator(".sentence")).to_contain_text("on its second machine")
    expect(page.get_by_role("log")).to_contain_text("attempt 2 on local/")

    page.get_by_label("Search the log").fill("line 3")
    expect(page.locator(".hits")).to_contain_text(" of ")
    expect(page.locator(".log mark").first).to_have_text("line 3")

    page.get_by_role("button", name="Cancel …").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".sentence .status")).to_contain_text("cancelled")
    expect(page.get_by_role("button", name="Cancel …")).to_have_count(0)
    page.close()


def test_list__shows_a_preemption_without_a_reload(dashboard: Dashboard) -> None:
    job_id = dashboard.launch("watched")
    page = dashboard.open("/jobs", "Jobs")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="watched"))
    expect(row).to_contain_text("running")
    dashboard.controller.perdure("jobs", "preempt", job_id, "--kill")
    expect(row.locator(".recov")).to_have_text("1")
    dashboard.controller.perdure("jobs", "cancel", job_id, "-y")
    expect(row).to_have_count(0)
    page.close()


def test_list__filters_selects_and_cancels_together(dashboard: Dashboard) -> None:
    for name in ("bulk-one", "bulk-two", "kept"):
        dashboard.launch(name)
    page = dashboard.open("/jobs", "Jobs")
    page.get_by_role("searchbox").fill("bulk-*")
    expect(page.locator("tbody tr")).to_have_count(2)
    assert "q=bulk" in page.url
    page.get_by_label("Select all jobs").check()
    page.get_by_role("button", name="Cancel 2 jobs").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel 2 jobs").click()
    expect(page.get_by_role("heading", name="No job matches")).to_be_visible()
    page.go_back()
    statuses = {job["name"]: job["status"] for job in dashboard.controller.client.jobs()["jobs"]}
    assert statuses["bulk-one"] in ("CANCELLING", "CANCELLED")
    assert statuses["kept"] in ("PENDING", "STARTING", "RUNNING")
    dashboard.controller.perdure("jobs", "cancel", "-n", "kept", "-y")
    page.close()


def test_keyboard__is_enough(dashboard: Dashboard, preempted: int) -> None:
    page = dashboard.open("/jobs?q=preempted", "Jobs")
    expect(page.get_by_role("link", name="preempted")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="preempted", level=1)).to_be_visible()
    page.keyboard.press("]")
    expect(page.locator(".attempts tr.selected")).to_have_count(1)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("c")
    expect(page.get_by_role("dialog")).to_contain_text(f"Cancel job {preempted}")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)

    def has_gone_to_the_market() -> bool:
        """Two keys are a sequence within two seconds, which a busy machine may not keep."""
        page.keyboard.press("g")
        page.keyboard.press("m")
        return page.get_by_role("heading", name="Market", level=1).is_visible()

    wait_until(has_gone_to_the_market, "the market")
    page.close()


def test_hostile_texts__are_shown_as_text(dashboard: Dashboard) -> None:
    task = {
        "name": "hostile",
        "envs": {"X": "<img src=x onerror=alert(1)>"},
        "run": "printf '<script>alert(1)</script> \\033[31mred\\033[0m \\033[2J \\342\\200\\256rtl\\n'; sleep 1000",
    }
    dashboard.controller.client.submit(None, [task], user="<b>eve</b>", key="hostile")
    page = dashboard.open("/jobs?q=hostile", "Jobs")
    expect(page.get_by_role("cell", name="<b>eve</b>")).to_be_visible()
    page.get_by_role("link", name="hostile").click()
    log = page.get_by_role("log")
    expect(log).to_contain_text("<script>alert(1)</script>")
    expect(log.locator(".c1")).to_have_text("red")
    expect(log).to_contain_text("␛[2J")
    expect(log).to_contain_text("\ufffdrtl")
    page.goto(page.url + "?tab=yaml")
    expect(page.locator("pre.code")).to_contain_text("<img src=x")
    dashboard.controller.perdure("jobs", "cancel", "-n", "hostile", "-y", "--no-graceful")
    page.close()


def test_unknown_job__is_an_error_without_the_name_of_a_parameter(dashboard: Dashboard) -> None:
    page = dashboard.context.new_page()
    page.goto(f"{dashboard.url}/jobs/999999", wait_until="commit")
    expect(page.get_by_role("alert")).to_have_text(re.compile("^there is no job 999999"))
    expect(page.locator("header .live")).to_have_text("live")
    dashboard.problems.clear()  # the browser reports the 404
    page.close()


def test_narrow_tables__are_scrolled_and_charts_can_be_read(dashboard: Dashboard) -> None:
    context = dashboard.sign_in(viewport={"width": 390, "height": 900})
    page = context.new_page()
    page.goto(f"{dashboard.url}/controllers", wait_until="commit")
    identity = page.get_by_role("region", name="Controllers").locator("td code")
    identity.wait_for()
    assert identity.evaluate("node => node.getClientRects().length") == 1, "the id is on one line"
    spent = {"cost_usd": 1, "on_demand_usd": 2, "lost_s": 0, "lost_usd": 0}
    shown = {"by_day": [{"day": f"2026-11-{day:02}", **spent} for day in range(1, 8)], "total": spent}
    page.route("**/api/v1/savings*", lambda route: route.fulfill(json={**route.fetch().json(), **shown}))
    page.goto(f"{dashboard.url}/savings", wait_until="commit")
    label = page.locator(".chart .tick").first
    label.wait_for()
    assert label.evaluate("node => node.getBoundingClientRect().height") >= 10
    context.close()


@pytest.mark.slow
def test_cluster__is_named_and_its_slots_are_no_machines(dashboard: Dashboard) -> None:
    perdure = dashboard.controller.perdure
    perdure("launch", "-c", "dev", "--yes", "-d", "sleep 600")
    (cluster,) = dashboard.controller.client.call(api_types.ClusterList, "GET", "/clusters")["clusters"]
    page = dashboard.open("/nodes", "Nodes")
    row = page.get_by_role("row").filter(has_text="cluster dev")
    expect(row).to_have_count(1)
    expect(page.locator("tbody")).not_to_contain_text("slot")
    row.get_by_role("link").click()
    expect(page.locator(".message")).to_contain_text("Holds the machines of cluster dev")
    expect(page.get_by_role("button", name="Cancel …")).to_have_count(0)

    def is_in_the_savings() -> bool:
        """Half a minute later, if somebody looked at them just before."""
        page.goto(f"{dashboard.url}/savings", wait_until="commit")
        page.locator("main table, main .empty").first.wait_for()
        return page.get_by_role("link", name=f"cluster dev ({cluster['host_job_id']})").is_visible()

    wait_until(is_in_the_savings, "the cluster in the savings", 60)
    expect(page.get_by_role("region", name="By cloud: table")).not_to_contain_text("cluster")
    perdure("down", "dev", "--yes")
    page.close()


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 390),
        pytest.param("dark", 1280, marks=pytest.mark.slow),
        pytest.param("light", 1280, marks=pytest.mark.long),
        pytest.param("dark", 390, marks=pytest.mark.long),
    ],
)
def test_every_page__is_accessible(dashboard: Dashboard, preempted: int, axe: str, scheme: str, width: int) -> None:
    context = dashboard.sign_in(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    found = []
    for view in [*VIEWS, *(f"/jobs/{preempted}{tab}" for tab in TABS)]:
        page.goto(dashboard.url + view, wait_until="commit")
        page.locator("main table, main .empty, main form, main .log, main .chart, main pre").first.wait_for()
        page.evaluate(axe)
        result = page.evaluate("tags => axe.run(document, {runOnly: tags})", TAGS)
        found += [(view, one["id"], [node["html"][:200] for node in one["nodes"]]) for one in result["violations"]]
        overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, f"{view} is wider than the screen"
    assert not found, json.dumps(found, indent=1)
    context.close()


def test_sign_in_page__is_accessible(dashboard: Dashboard, axe: str) -> None:
    context = dashboard.new_context()
    page = context.new_page()
    page.goto(dashboard.url, wait_until="commit")
    page.get_by_role("heading", name="Sign in").wait_for()
    page.evaluate(axe)
    assert page.evaluate("tags => axe.run(document, {runOnly: tags})", TAGS)["violations"] == []
    dashboard.problems.clear()  # the browser reports the 401s
    context.close()


@pytest.mark.parametrize("tabs", [8, pytest.param(30, marks=pytest.mark.slow)])
def test_tabs__share_one_stream(dashboard: Dashboard, tabs: int) -> None:
    context = dashboard.sign_in()
    streams: list[str] = []
    context.on("request", lambda request: streams.append(request.url) if "/events" in request.url else None)
    pages = [context.new_page() for _ in range(tabs)]
    for page in pages:
        page.goto(f"{dashboard.url}/jobs", wait_until="commit")
    for page in pages:
        expect(page.locator(".live.on")).to_be_visible()
    assert len(streams) == 1
    assert max(page.evaluate(SLOWEST) for page in pages) < scaled(1) * 1000
    job_id = dashboard.launch(f"for-{tabs}-tabs")
    for page in pages:
        expect(page.get_by_role("link", name=f"for-{tabs}-tabs")).to_be_visible()
    pages[0].close()  # the one that reads the stream: another one takes over
    dashboard.controller.perdure("jobs", "cancel", job_id, "-y")
    for page in pages[1:]:
        expect(page.get_by_role("link", name=f"for-{tabs}-tabs")).to_have_count(0)
    context.close()


def test_console__has_no_error(dashboard: Dashboard) -> None:
    """After all tests above. The content security policy reports its violations there."""
    wait_until(lambda: True)
    assert not dashboard.problems


@pytest.mark.slow
def test_page__continues_after_a_restart_of_the_controller(dashboard: Dashboard, preempted: int) -> None:
    page = dashboard.open(f"/jobs/{preempted}", "preempted")
    expect(page.locator(".live.on")).to_be_visible()
    dashboard.controller.perdure("controller", "stop")
    expect(page.get_by_text("The controller does not answer. What you see may be old")).to_be_visible()
    dashboard.controller.perdure("controller", "start")
    expect(page.locator(".live.on")).to_be_visible()
    expect(page.locator(".offline")).to_have_count(0)
    dashboard.controller.perdure("jobs", "cancel", preempted, "-y")
    expect(page.locator(".sentence .status")).to_contain_text("cancelled")
    page.close()
