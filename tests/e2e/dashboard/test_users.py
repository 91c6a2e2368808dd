"""The dashboard of several users: signing in as one, the pages of users, the audit log and clusters."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.dashboard.conftest import TAGS, Dashboard
from e2e.dashboard.test_dashboard import expect
from support.helpers.timing import scaled

pytestmark = pytest.mark.slow
VIEWS = [
    "/users",
    "/users?tab=audit",
    "/users?tab=audit&outcome=denied",
    "/clusters",
    "/clusters/dev",
    "/jobs?user=alice",
]


@dataclass(frozen=True)
class Shared:
    """A dashboard whose own browser is the administrator's, tokens of users by name, and a job of alice's."""

    dashboard: Dashboard
    tokens: dict[str, str]
    job_id: int

    def sign_in(self, user: str) -> Any:
        """A page of another browser, signed in with a token that was pasted."""
        page = self.dashboard.new_context().new_page()
        page.goto(self.dashboard.url, wait_until="commit")
        page.get_by_label("Or paste the link").fill(self.tokens[user])
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="Jobs", exact=True).wait_for()
        return page


@pytest.fixture(scope="module")
def shared(dashboard: Dashboard) -> Iterator[Shared]:
    run, client = dashboard.controller.perdure, dashboard.controller.client
    tokens = {}
    for user, role in (("alice", "user"), ("vera", "viewer")):
        run("users", "create", user, "--role", role)
        tokens[user] = run("tokens", "create", user, "--label", "browser").stdout.strip()
    dashboard.launch("of-admin")
    endpoint = type(client.endpoint)(client.endpoint.url, tokens["alice"])
    hers = type(client)(endpoint).submit(None, [{"name": "hers", "run": "sleep 1000"}], user="", key="hers")
    run("launch", "-c", "dev", "--yes", "-d", "sleep 600")
    run("users", "set-budget", "alice", "0.000001")
    yield Shared(dashboard, tokens, hers["job_id"])
    run("down", "dev", "--yes", check=False)


def test_user__sees_only_what_is_theirs(shared: Shared) -> None:
    page = shared.sign_in("alice")
    expect(page.get_by_role("link", name="hers")).to_be_visible()
    expect(page.get_by_role("link", name="of-admin")).to_have_count(0)
    expect(page.locator("header .tools")).to_contain_text("alice")
    expect(page.get_by_role("navigation", name="Views").get_by_role("link", name="Users")).to_have_count(0)
    expect(page.get_by_role("group", name="User")).to_have_count(0)
    page.get_by_role("link", name="hers").click()
    expect(page.get_by_role("button", name="Cancel …")).to_be_visible()
    page.goto(f"{shared.dashboard.url}/users", wait_until="commit")
    expect(page.get_by_role("heading", name="Only administrators see this page")).to_be_visible()
    page.goto(f"{shared.dashboard.url}/clusters", wait_until="commit")
    expect(page.get_by_role("heading", name="No clusters")).to_be_visible()
    page.context.close()


def test_viewer__sees_everybodys_and_changes_nothing(shared: Shared) -> None:
    page = shared.sign_in("vera")
    expect(page.get_by_role("link", name="of-admin")).to_be_visible()
    expect(page.get_by_role("link", name="Launch a job")).to_have_count(0)
    page.get_by_role("link", name="hers").click()
    expect(page.get_by_role("log")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Cancel|Preempt"))).to_have_count(0)
    page.goto(f"{shared.dashboard.url}/clusters/dev", wait_until="commit")
    expect(page.get_by_role("region", name="Jobs of the cluster")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Stop|down|Cancel"))).to_have_count(0)
    page.context.close()


def test_jobs__are_filtered_by_user(shared: Shared) -> None:
    page = shared.dashboard.open("/jobs", "Jobs")
    page.get_by_role("cell", name="alice").get_by_role("link").click()
    expect(page.get_by_role("link", name="of-admin")).to_have_count(0)
    expect(page.get_by_role("link", name="hers")).to_be_visible()
    page.get_by_role("group", name="User").get_by_role("link", name="Mine").click()
    expect(page.get_by_role("link", name="hers")).to_have_count(0)
    page.get_by_role("link", name="Everybody's").click()
    expect(page.get_by_role("link", name="hers")).to_be_visible()
    page.close()


def test_users__are_added_limited_and_their_tokens_revoked(shared: Shared) -> None:
    page = shared.dashboard.open("/users", "Users")
    page.get_by_role("button", name="Add a user").click()
    page.get_by_label("Name").fill("Bad Name")
    page.get_by_role("button", name="Add the user").click()
    expect(page.get_by_role("alert")).to_contain_text("cannot be the name of a user")
    page.get_by_label("Name").fill("carla")
    page.get_by_label("Role").select_option("operator")
    page.get_by_label("USD a month").fill("12.5")
    page.get_by_role("button", name="Add the user").click()
    row = page.get_by_role("row").filter(has_text="carla")
    expect(row).to_contain_text("$12.50")
    page.get_by_role("button", name="Edit carla").click()
    page.get_by_label("Running at most").fill("4")
    page.get_by_label("Disabled").check()
    page.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("disabled")
    (carla,) = [user for user in _users(shared) if user["name"] == "carla"]
    assert (carla["max_running_jobs"], carla["budget_usd"], carla["role"]) == (4, 12.5, "operator")

    page.get_by_role("button", name="New token of vera").click()
    page.get_by_label("What it is for").fill("wall screen")
    page.get_by_role("button", name="Create the token").click()
    expect(page.get_by_role("dialog").locator("pre")).to_have_text(re.compile("^pdu_"))
    page.get_by_role("button", name="Close").click()
    row = page.get_by_role("row").filter(has_text="wall screen")
    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("button", name="Revoke the token").click()
    expect(row).to_have_count(0)
    shared.dashboard.problems.clear()  # the browser reports the 400
    page.close()


def test_budget__shows_what_is_spent(shared: Shared) -> None:
    controller = shared.dashboard.controller
    controller.until(lambda: _spent(shared) > 0.0, "alice's machine to cost something")
    page = shared.dashboard.open("/users", "Users")
    expect(page.get_by_role("row").filter(has_text="alice").first).to_contain_text("spent")
    page.close()


def test_audit__shows_who_did_what(shared: Shared) -> None:
    page = shared.dashboard.open("/users?tab=audit", "Users")
    expect(page.get_by_role("row").filter(has_text="token.create").first).to_contain_text("of")
    page.get_by_role("group", name="Kinds").get_by_role("link", name="job").click()
    page.get_by_role("searchbox", name="User").fill("alice")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("job.submit")
    page.get_by_role("link", name=f"job {shared.job_id}").click()
    expect(page.get_by_role("heading", name="hers", level=1)).to_be_visible()
    page.close()


def test_cluster__is_listed_with_its_queue_and_stopped(shared: Shared) -> None:
    page = shared.dashboard.open("/clusters", "Clusters")
    page.get_by_role("link", name="dev").click()
    expect(page.get_by_role("heading", name="dev", level=1)).to_be_visible()
    queue = page.get_by_role("region", name="Jobs of the cluster")
    expect(queue).to_contain_text("running")
    queue.get_by_role("button", name="Cancel job 1").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(queue).to_contain_text("cancelled")
    page.get_by_role("button", name="Stop …").click()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_role("button", name="Start …")).to_be_visible()
    page.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1280)])
def test_pages__are_accessible(shared: Shared, axe: str, scheme: str, width: int) -> None:
    context = shared.dashboard.sign_in(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    found = []
    for view in VIEWS:
        page.goto(shared.dashboard.url + view, wait_until="commit")
        page.locator("main table, main .empty").first.wait_for()
        if view == "/users":
            page.get_by_role("button", name="Edit alice").click()
        page.evaluate(axe)
        result = page.evaluate("tags => axe.run(document, {runOnly: tags})", TAGS)
        found += [(view, one["id"], [node["html"][:200] for node in one["nodes"]]) for one in result["violations"]]
        overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, f"{view} is wider than the screen"
    assert not found, json.dumps(found, indent=1)
    context.close()


def test_link_of_somebody__is_not_followed_without_a_question(shared: Shared) -> None:
    page = shared.sign_in("alice")
    page.goto(shared.dashboard.link(), wait_until="commit")
    expect(page.get_by_role("heading", name="Sign in as admin?")).to_be_visible()
    page.get_by_role("button", name="No").click()
    expect(page.locator("header .tools")).to_contain_text("alice")
    page.goto(shared.dashboard.link(), wait_until="commit")
    page.get_by_role("button", name="Sign in as admin").click()
    expect(page.get_by_role("link", name="of-admin")).to_be_visible()
    page.context.close()


def test_command_line__is_signed_in_by_the_browser(shared: Shared, tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    environ["PERDURE_HOME"] = str(tmp_path / "home")
    url = shared.dashboard.url
    login = subprocess.Popen(
        [sys.executable, "-m", "perdure.cli", "login", url, "--no-browser"],
        env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert login.stdout is not None
    link = login.stdout.readline().strip()
    page = shared.sign_in("alice")
    page.goto(link, wait_until="commit")
    expect(page.get_by_role("heading", name="Sign the command line in?")).to_be_visible()
    expect(page.locator("main")).to_contain_text("asks to work as alice")
    page.get_by_role("button", name="Allow").click()
    expect(page.locator("body")).to_contain_text("The command line is signed in")
    output, errors = login.communicate(timeout=scaled(30))
    assert login.returncode == 0, errors
    assert f"Signed in to {url} as alice" in output
    done = subprocess.run(
        [sys.executable, "-m", "perdure.cli", "jobs", "queue"],
        env={**environ, "PERDURE_ENDPOINT": url}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "hers" in done.stdout
    assert "of-admin" not in done.stdout
    assert (tmp_path / "home/logins.json").stat().st_mode & 0o077 == 0
    shared.dashboard.asked[:] = [one for one in shared.dashboard.asked if one.startswith((url, "blob:"))]
    page.context.close()


def test_console__has_no_error(shared: Shared) -> None:
    """After all tests above, whose browsers report the 401s before somebody signs in."""
    assert [text for text in shared.dashboard.problems if "401" not in text] == []


def _users(shared: Shared) -> list[dict[str, Any]]:
    return list(json.loads(shared.dashboard.controller.perdure("users", "list", "-o", "json").stdout))


def _spent(shared: Shared) -> float:
    return next(float(user["spent_usd"]) for user in _users(shared) if user["name"] == "alice")
