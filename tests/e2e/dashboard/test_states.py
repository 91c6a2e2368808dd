"""Pages without a mouse, pages of a controller that has nothing yet, and pages whose calls fail."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.dashboard.conftest import TAGS, Dashboard
from e2e.dashboard.test_dashboard import VIEWS, expect

pytestmark = pytest.mark.slow

MOST_TABS = 80
ERROR = {"error": {"message": "the database is away", "where": None, "fix": "try again later"}}
STATES = [("light", 390), ("dark", 1280)]


def tab_to(page: Any, locator: Any) -> None:
    """Press Tab until the element has the focus, which must be visible."""
    for _ in range(MOST_TABS):
        if locator.evaluate("node => node === document.activeElement"):
            shown = "node => { const s = getComputedStyle(node); return [s.outlineStyle, s.boxShadow]; }"
            outline, shadow = locator.evaluate(shown)
            assert (outline, shadow) != ("none", "none"), "the focus cannot be seen"
            return
        page.keyboard.press("Tab")
    pytest.fail(f"{locator} cannot be reached by Tab")


def violations(page: Any, axe: str) -> list[tuple[str, list[str]]]:
    page.evaluate(axe)
    result = page.evaluate("tags => axe.run(document, {runOnly: tags})", TAGS)
    return [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in result["violations"]]


@pytest.mark.parametrize(("scheme", "width"), STATES)
def test_pages__of_a_new_controller_are_accessible(dashboard: Dashboard, axe: str, scheme: str, width: int) -> None:
    """These tests come first, so that nothing was launched yet."""
    assert dashboard.controller.client.jobs()["total"] == 0
    context = dashboard.sign_in(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    problems = []
    for view in [*VIEWS, "/clusters", "/services", "/users"]:
        page.goto(dashboard.url + view, wait_until="commit")
        page.locator("main table, main .empty, main form").first.wait_for()
        problems += [(view, *one) for one in violations(page, axe)]
    assert not problems, json.dumps(problems, indent=1)
    context.close()


@pytest.mark.parametrize(("scheme", "width"), STATES)
def test_pages__whose_calls_fail_say_so_and_are_accessible(
    dashboard: Dashboard, axe: str, scheme: str, width: int
) -> None:
    context = dashboard.sign_in(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.route("**/api/v1/**", lambda route: route.fulfill(status=503, json=ERROR))
    page.route("**/api/v1/session", lambda route: route.continue_())
    page.route("**/api/v1/whoami", lambda route: route.continue_())
    problems = []
    for view in [*(view for view in VIEWS if view != "/launch"), "/clusters", "/services", "/users", "/jobs/1"]:
        page.goto(dashboard.url + view, wait_until="commit")
        expect(page.get_by_role("alert").first).to_contain_text("the database is away")
        problems += [(view, *one) for one in violations(page, axe)]
    assert not problems, json.dumps(problems, indent=1)
    dashboard.problems.clear()  # the browser reports the 503s
    context.close()


def test_keyboard__launches_finds_reads_and_cancels(dashboard: Dashboard) -> None:
    page = dashboard.open("/jobs", "Jobs")
    page.keyboard.press("g")
    page.keyboard.press("l")
    expect(page.get_by_role("heading", name="Launch a job", level=1)).to_be_visible()
    tab_to(page, page.get_by_label("Task YAML"))
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.insert_text("name: by-keyboard\nrun: |\n  for i in $(seq 100000); do echo line $i; sleep 0.1; done\n")
    tab_to(page, page.get_by_role("button", name="Launch", exact=True))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="by-keyboard", level=1)).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("j")
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("by-key")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    log = page.get_by_role("log")
    expect(log).to_contain_text("line 30")
    tab_to(page, log)
    page.keyboard.press("Home")
    expect(log).to_contain_text("line 1")
    page.keyboard.press("Escape")
    page.keyboard.press("c")
    expect(page.get_by_role("dialog")).to_contain_text("by-keyboard")
    tab_to(page, page.get_by_role("button", name="Cancel the job"))
    page.keyboard.press("Enter")
    expect(page.locator(".sentence .status")).to_contain_text("cancelled")
    page.close()
