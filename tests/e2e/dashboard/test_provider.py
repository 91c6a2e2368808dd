"""A browser signs in by a provider of OpenID Connect, which is another origin."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.dashboard.test_dashboard import expect
from perdure.controller.runtime.clock import SystemClock
from support.fakes.oidc_provider import FakeOidcProvider
from support.helpers.controllers import running_controller
from support.helpers.timing import scaled

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


def test_sign_in__is_not_asked_about_only_if_the_page_has_gone_to_the_provider(
    tmp_path: Path, browser: Browser
) -> None:
    claims = {"email": "ada@example.org", "email_verified": True}
    with FakeOidcProvider(now=SystemClock().now, claims=claims) as provider:
        (tmp_path / "config.yaml").write_text(
            f"oidc: {{issuer: '{provider.issuer}', client_id: perdure, name: Example, default_role: user}}\n"
        )
        with running_controller(tmp_path) as controller, browser.new_context() as context:
            context.set_default_timeout(scaled(15) * 1000)
            url = controller.client.endpoint.url
            page = context.new_page()
            page.goto(url, wait_until="commit")
            page.get_by_role("link", name="Sign in with Example").click()
            expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
            expect(page.locator("header .tools")).to_contain_text("ada@example.org")
            # The cookie of a code, and a link with it, but no click: another server of this host can cause that.
            for other in (page, context.new_page()):
                other.goto(f"{url}/api/v1/session/oidc", wait_until="commit")
                expect(other.get_by_role("heading", name=re.compile("^Sign in as ada@example.org"))).to_be_visible()
        assert provider.problems == []
