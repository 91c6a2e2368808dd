"""A controller and a browser that all tests of the dashboard share. A test that finds no browser is skipped."""

from __future__ import annotations

import re
import shutil
from asyncio.events import _set_running_loop
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.helpers.controllers import Controller, running_controller
from support.helpers.timing import scaled

if TYPE_CHECKING:
    from playwright.sync_api import Browser

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: run make test")

ROOT = Path(__file__).resolve().parents[3]
AXE = ROOT / "dashboard/node_modules/axe-core/axe.min.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
CONFIG = "local: {accelerators: {V100: 8}}\n"
# A job whose log is quick to read, and which ends only if it is told to.
STEPS = """
name: {name}
resources: {{use_spot: true}}
run: |
  for step in $(seq 100000); do echo "step $step of {name}"; sleep 0.1; done
"""


@dataclass
class Dashboard:
    """`context` is a browser that is signed in. `asked` has the addresses of all requests, `problems` what the console
    printed besides information."""

    controller: Controller
    browser: Browser
    url: str
    context: Any = None
    asked: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def link(self) -> str:
        return self.controller.perdure("dashboard", "--no-browser").stdout.strip()

    def new_context(self, **options: Any) -> Any:
        """Another browser, as it were, that is not signed in."""
        context = self.browser.new_context(**options)
        context.set_default_timeout(scaled(15) * 1000)
        context.on("request", lambda request: self.asked.append(request.url))
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self.problems.append(str(error.error)))
        return context

    def sign_in(self, **options: Any) -> Any:
        """A new context that is signed in."""
        context = self.new_context(**options)
        page = context.new_page()
        page.goto(self.link(), wait_until="commit")
        page.get_by_role("heading", name=re.compile("^(Jobs|Sign in as .*)$")).wait_for()
        if (confirm := page.get_by_role("button", name=re.compile("^Sign in as "))).count():
            confirm.click()  # the controller has several users
        page.get_by_role("heading", name="Jobs", exact=True).wait_for()
        page.close()
        return context

    def open(self, path: str, heading: str) -> Any:
        """A page of the signed-in browser, once it shows the heading."""
        page = self.context.new_page()
        page.goto(self.url + path, wait_until="commit")
        page.get_by_role("heading", name=heading, level=1).wait_for()
        return page

    def launch(self, name: str) -> int:
        """Launch a job that runs until it is cancelled."""
        path = self.controller.home / f"{name}.yaml"
        path.write_text(STEPS.format(name=name))
        self.controller.perdure("jobs", "launch", "-d", "-y", path)
        (job,) = [job for job in self.controller.client.jobs(name=name)["jobs"]]
        return job["job_id"]

    def wait_for_status(self, job_id: int, status: str) -> None:
        self.controller.until(lambda: self.controller.job(job_id)["status"] == status, f"job {job_id} {status}")

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text} {message.location.get('url', '')}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("chromium is not installed: run scripts/ensure-chromium.sh")
    with playwright.sync_playwright() as tool:
        one = tool.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=scaled(60) * 1000)
        yield one
        _set_running_loop(one._loop)
        one.close()


@pytest.fixture(scope="module", autouse=True)
def _event_loop(browser: Browser) -> Iterator[None]:
    """Playwright leaves its event loop marked as the one that runs in this thread, where the tests of other modules
    run loops of their own."""
    _set_running_loop(browser._loop)
    yield
    _set_running_loop(None)


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Dashboard]:
    home = tmp_path_factory.mktemp("home")
    (home / "config.yaml").write_text(CONFIG)
    with running_controller(home) as controller:
        one = Dashboard(controller, browser, controller.client.endpoint.url)
        one.context = one.sign_in()
        yield one
        for context in browser.contexts:
            context.close()
    assert {url.partition("#")[0] for url in one.asked if not url.startswith((one.url, "blob:"))} == set()


@pytest.fixture(scope="session")
def axe() -> str:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: run scripts/ensure-chromium.sh")
    return AXE.read_text()
