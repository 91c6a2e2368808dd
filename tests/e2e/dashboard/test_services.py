"""The pages of services in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.dashboard.conftest import TAGS, Dashboard
from e2e.dashboard.test_dashboard import expect
from perdure.sdk import serve
from support.helpers.services import HAS_HAPROXY, PROGRAM, Caller, ServiceHost, service_task

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_HAPROXY, reason="HAProxy is not installed: run scripts/ensure-haproxy.sh"),
]


@pytest.fixture(scope="module")
def sky(dashboard: Dashboard) -> ServiceHost:
    return ServiceHost(dashboard.controller)


@pytest.fixture(scope="module")
def caller(sky: ServiceHost) -> Iterator[Caller]:
    """A service with two replicas."""
    yield sky.up("model", service_task({"replicas": 2}), ready=2)
    sky.controller.perdure("serve", "down", "--all", "--yes", check=False)


def test_viewer__sees_the_service_and_changes_nothing(dashboard: Dashboard, caller: Caller) -> None:
    dashboard.controller.perdure("users", "create", "vera", "--role", "viewer")
    token = dashboard.controller.perdure("tokens", "create", "vera", "--label", "browser").stdout.strip()
    page = dashboard.new_context().new_page()
    page.goto(f"{dashboard.url}/services/model", wait_until="commit")
    page.get_by_label("Or paste the link").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("region", name="Replicas")).to_contain_text("ready")
    for name in ("Take down …", "Token", "End replica 1"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    dashboard.problems.clear()  # the browser reports the 401s
    page.context.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1280)])
def test_pages__are_accessible(dashboard: Dashboard, caller: Caller, axe: str, scheme: str, width: int) -> None:
    context = dashboard.sign_in(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    violations = []
    for view in ("/services", "/services/model", "/launch?service=", "/launch?service=model"):
        page.goto(dashboard.url + view, wait_until="commit")
        page.locator("main form, main table").last.wait_for()
        page.evaluate(axe)
        result: Any = page.evaluate("tags => axe.run(document, {runOnly: tags})", TAGS)
        violations += [(view, one["id"], [node["html"][:200] for node in one["nodes"]]) for one in result["violations"]]
        overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, f"{view} is wider than the screen"
    assert not violations, json.dumps(violations, indent=1)
    context.close()


def test_service__is_watched_changed_and_taken_down(dashboard: Dashboard, sky: ServiceHost, caller: Caller) -> None:
    page = dashboard.open("/services", "Services")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="model"))
    expect(row).to_contain_text("2/2")
    row.get_by_role("link").click()
    expect(page.get_by_role("heading", name="model", level=1)).to_be_visible()
    expect(page.locator(".facts")).to_contain_text(caller.endpoint)
    expect(page.get_by_role("region", name="Timeline")).to_contain_text("replica ready")
    page.get_by_role("button", name="Token").click()
    expect(page.get_by_role("button", name="Copy the token")).to_be_visible()

    page.get_by_role("button", name="End replica 1").click()
    page.get_by_role("button", name="End the replica").click()
    replicas = page.get_by_role("region", name="Replicas")
    expect(replicas.get_by_role("row").filter(has_text="terminated")).to_have_count(1)
    sky.until_ready("model", 2)
    expect(replicas.get_by_role("button", name="End replica 3")).to_be_visible()
    job = next(one["job_id"] for one in sky.get("model")["replicas"] if one["number"] == 3)
    replicas.get_by_role("link", name=f"job {job}").click()
    expect(page.get_by_role("log")).to_contain_text("loading the model")
    page.go_back()

    page.get_by_role("button", name="Take down …").click()
    page.get_by_role("button", name="Take down", exact=True).click()
    expect(page.get_by_role("heading", name="No services")).to_be_visible()
    page.close()
    assert dashboard.problems == []


YAML = f"""\
service: {{readiness_probe: /v1/models}}
resources: {{ports: 8080, cpus: 1}}
envs: {{SERVER: {PROGRAM}, MODEL: first}}
secrets: {{KEY: canary}}
run: test "$KEY" = canary && exec python3 "$SERVER" 8080
"""


def test_service__is_started_called_and_updated(dashboard: Dashboard, sky: ServiceHost) -> None:
    page = dashboard.open("/services", "Services")
    page.get_by_role("link", name="Start a service").click()
    expect(page.get_by_role("heading", name="Start a service", level=1)).to_be_visible()
    page.get_by_label("Task YAML").fill(YAML)
    page.get_by_label("Name", exact=True).fill("typed")
    page.get_by_role("button", name="Show what a replica would buy").click()
    expect(page.get_by_role("region", name="Plan")).to_contain_text("local")
    page.get_by_role("button", name="Start the service").click()
    expect(page.get_by_role("heading", name="typed", level=1)).to_be_visible()
    sky.until_ready("typed", 1)
    caller = Caller(*serve.token("typed", client=sky.client).values())
    assert caller.token, "callers need a token unless the user says otherwise"
    assert caller.call("/seen").json()["model"] == "first"
    page.get_by_text("Log of the proxy").click()
    expect(page.get_by_role("region", name="Log of the proxy")).to_contain_text("GET /seen 200")

    page.get_by_role("link", name="Update").click()
    editor = page.get_by_label("Task YAML")
    expect(editor).to_have_value(re.compile("MODEL: first"))
    assert "KEY: canary" not in editor.input_value()
    expect(page.get_by_text("Secrets that are kept: KEY")).to_be_visible()
    editor.fill(editor.input_value().replace("MODEL: first", "MODEL: second"))
    page.get_by_role("button", name="Update the service").click()
    expect(page.get_by_role("heading", name="typed", level=1)).to_be_visible()
    sky.until("typed", lambda one: [r["version"] for r in sky.ready("typed")] == [2], "the new version")
    assert caller.call().json()["model"] == "second"

    page.get_by_role("link", name="Update").click()
    editor.fill("run: no service")
    page.get_by_role("button", name="Update the service").click()
    expect(page.get_by_role("alert")).to_contain_text("the task has no `service`")
    page.close()
    assert [one for one in dashboard.problems if "400" not in one] == []
    dashboard.problems.clear()
    sky.controller.perdure("serve", "down", "typed", "--yes")
