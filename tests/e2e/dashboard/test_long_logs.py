"""A log of more lines than an element of a page can be high, and than a browser should load."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from e2e.dashboard.conftest import TAGS, Dashboard
from e2e.dashboard.test_dashboard import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

LINES = 1_000_000  # 20 million pixels; an element has twelve at most
NUMBERS = """() => [...document.querySelectorAll(".line")].map((line) =>
  [Number(line.querySelector(".number").textContent), line.querySelector(".text").textContent])"""

# The number of the first line that can be seen as a whole.
TOP_LINE = """() => {
  const top = document.querySelector(".log-lines").getBoundingClientRect().top;
  const seen = [...document.querySelectorAll(".line")].find((line) => line.getBoundingClientRect().top >= top - 1);
  return Number(seen.querySelector(".number").textContent);
}"""


@pytest.fixture(scope="module")
def job_id(dashboard: Dashboard) -> int:
    """Its headline is line 1, and line n + 1 has the number n."""
    (dashboard.controller.home / "long.yaml").write_text(f"name: long\nrun: seq -f 'number %.0f is here' 1 {LINES}\n")
    dashboard.controller.perdure("jobs", "launch", "-d", "-y", dashboard.controller.home / "long.yaml")
    (job,) = dashboard.controller.client.jobs(name="long")["jobs"]
    dashboard.wait_for_status(job["job_id"], "SUCCEEDED")
    return int(job["job_id"])


@pytest.fixture
def page(dashboard: Dashboard, job_id: int) -> Iterator[Page]:
    page = dashboard.open(f"/jobs/{job_id}", "long")
    expect(page.locator(".log-foot")).to_contain_text("1,000,00")
    yield page
    page.close()


def lines_shown(page: Page) -> list[int]:
    """The numbers of the lines in the page, each of which has the text that belongs to it."""
    shown = page.evaluate(NUMBERS)
    for number, text in shown:
        if 2 <= number <= LINES + 1:
            assert text == f"number {number - 1} is here"
    return [number for number, _ in shown]


def test_page__opens_at_the_end_and_loads_only_that(page: Page) -> None:
    expect(page.get_by_role("log")).to_contain_text("number 1000000 is here")
    assert max(lines_shown(page)) >= LINES + 1
    assert len(lines_shown(page)) < 100


def test_line__is_jumped_to_and_the_wheel_goes_on_from_there(page: Page) -> None:
    page.get_by_label("Go to line").fill("500,001")
    page.get_by_label("Go to line").press("Enter")
    expect(page.locator(".line.current .text")).to_have_text("number 500000 is here")
    assert "line=500001" in page.url
    before = lines_shown(page)
    assert before == list(range(before[0], before[-1] + 1))
    top = page.evaluate(TOP_LINE)
    page.get_by_role("log").hover()
    page.mouse.wheel(0, 100)  # five lines
    page.wait_for_function(f"() => ({TOP_LINE})() === {top + 5}")
    page.get_by_role("log").focus()
    page.keyboard.press("ArrowUp")
    page.wait_for_function(f"() => ({TOP_LINE})() === {top + 4}")
    page.wait_for_function("() => !document.querySelector('.line.is-missing')")
    lines_shown(page)


def test_line_of_the_address__is_shown(dashboard: Dashboard, job_id: int) -> None:
    page = dashboard.open(f"/jobs/{job_id}?line=250001", "long")
    expect(page.locator(".line.current .text")).to_have_text("number 250000 is here")
    page.close()


def test_search__finds_upward_through_the_whole_log(page: Page, axe: str) -> None:
    page.get_by_label("Search the log").fill("number 12345 is")
    expect(page.locator(".line.current .text")).to_have_text("number 12345 is here")
    expect(page.locator(".hits")).to_have_text(re.compile(r"^1 of 1\+?$"))
    page.get_by_label("Search the log").fill("nothing has this")
    expect(page.locator(".hits")).to_have_text("no hit")
    page.get_by_label("Search the log").fill("number 99999")
    expect(page.locator(".line.current .text")).to_have_text("number 999999 is here")
    page.get_by_role("button", name="Previous hit").click()
    expect(page.locator(".line.current .text")).to_have_text("number 999998 is here")
    for _ in range(9):
        page.get_by_role("button", name="Previous hit").click()
    expect(page.locator(".line.current .text")).to_have_text("number 99999 is here")
    page.evaluate(axe)
    violations = page.evaluate("tags => axe.run(document, {runOnly: tags})", TAGS)["violations"]
    assert not violations, [one["id"] for one in violations]


def test_regular_expression__loads_the_log_and_finds(page: Page) -> None:
    page.get_by_label("Search the log").fill("/number 7{5} is/")
    expect(page.locator(".line.current .text")).to_have_text("number 77777 is here")
    expect(page.locator(".hits")).to_have_text("1 of 1")


def test_attempt__is_gone_to_from_its_row(dashboard: Dashboard, page: Page) -> None:
    page.get_by_role("button", name="Log of attempt 1").click()
    expect(page.get_by_role("log")).to_contain_text("--- attempt 1 on local/")
    assert not dashboard.problems
