"""A browser signs in by a provider of OpenID Connect, over HTTP."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.testclient import TestClient

from perdure.controller.api.app import create_app
from perdure.controller.api.dashboard.oidc import TOKEN_S
from perdure.controller.daemon import Daemon
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.settings import Settings
from support.fakes.oidc_provider import FakeOidcProvider, new_key
from unit.controller.api.dashboard.conftest import URL

START = "/api/v1/session/oidc"


@dataclass
class Site:
    provider: FakeOidcProvider
    daemon: Daemon
    clock: ManualClock
    app: object

    def browser(self) -> TestClient:
        headers = {"Origin": URL, "Sec-Fetch-Site": "same-origin"}
        return TestClient(self.app, base_url=URL, headers=headers, follow_redirects=False)  # type: ignore[arg-type]

    def agree(self, browser: TestClient) -> str:
        """The browser begins, and the user agrees: the path of the callback that it is sent to."""
        begun = browser.get(START)
        assert begun.status_code == 303, begun.text
        return follow(begun.headers["location"]).removeprefix(URL)

    def sign_in(self, browser: TestClient) -> str:
        """Where the browser is in the end."""
        done = browser.get(self.agree(browser))
        assert done.status_code == 303
        return str(done.headers["location"])

    def whoami(self, browser: TestClient, place: str) -> dict[str, object]:
        code = place.removeprefix("/#login=")
        signed_in = browser.post("/api/v1/session", json={"code": code})
        assert signed_in.status_code == 201, (place, signed_in.text)
        browser.headers["Perdure-CSRF"] = signed_in.json()["csrf"]
        return dict(browser.get("/api/v1/whoami").json())

    def actions(self) -> list[str]:
        self.daemon.api_context.access.tick()
        with self.daemon.database.connect() as conn:
            rows = conn.exec_driver_sql("SELECT action, outcome FROM audit ORDER BY id")
            return [" ".join(row) for row in rows]


def follow(url: str) -> str:
    """Where a browser is sent that opens the address."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    try:
        urllib.request.build_opener(Stay).open(url, timeout=30)
    except urllib.error.HTTPError as answer:
        return str(answer.headers["Location"])
    raise AssertionError("no redirect")


@pytest.fixture
def site(tmp_path: Path, migrated: Path) -> Iterator[Site]:
    shutil.copyfile(migrated, tmp_path / "perdure.db")
    clock = ManualClock()
    (tmp_path / "oidc.secret").write_text("s3cret!\n")
    with FakeOidcProvider(
        secret="s3cret%21", now=clock.now, claims={"email": "ada@example.org", "email_verified": True}
    ) as provider:
        provider.claims["groups"] = ["ml"]
        (tmp_path / "config.yaml").write_text(
            f"oidc: {{issuer: '{provider.issuer}', client_id: perdure, client_secret_file: oidc.secret, name: Example, "
            "roles: {ml: user, ops: operator}}\n"
        )
        daemon = Daemon(Settings(tmp_path), clock)
        yield Site(provider, daemon, clock, create_app(daemon.api_context))
        daemon.socket.close()
        daemon.close()
        assert provider.problems == []


def test_user__signs_in_and_gets_the_role_of_the_groups(site: Site) -> None:
    browser = site.browser()
    assert browser.get(f"{START}/name").json() == {"name": "Example"}
    place = site.sign_in(browser)
    me = site.whoami(browser, place)
    assert (me["user"], me["role"], me["has_users"]) == ("ada@example.org", "user", True)
    assert browser.post("/api/v1/session", json={"code": place.removeprefix("/#login=")}).status_code == 401, "once"
    assert site.actions()[:3] == ["user.create allowed", "session.oidc allowed", "session.sign_in allowed"]
    # The provider has changed the groups: the next sign-in changes the role, of earlier sign-ins as well.
    site.provider.claims["groups"] = ["ops"]
    second = site.browser()
    assert site.whoami(second, site.sign_in(second))["role"] == "operator"
    assert browser.get("/api/v1/whoami").json()["role"] == "operator"
    site.clock.advance(TOKEN_S + 1)
    assert browser.get("/api/v1/whoami").status_code == 401


def test_cookie_of_the_state__is_for_the_callback_alone(site: Site) -> None:
    browser = site.browser()
    begun = browser.get(START)
    (cookie,) = begun.headers.get_list("set-cookie")
    assert "; Path=/api/v1/session/oidc; Max-Age=600; HttpOnly; SameSite=Lax" in cookie
    query = parse_qs(urlsplit(begun.headers["location"]).query)
    assert query["redirect_uri"] == [f"{URL}{START}/callback"]
    state = query["state"][0]
    assert state in cookie
    assert all(state not in query[name][0] for name in ("nonce", "code_challenge"))
    done = browser.get(follow(begun.headers["location"]).removeprefix(URL))
    assert "Max-Age=0" in done.headers["set-cookie"]


def test_sign_in_that_another_browser_began__is_refused(site: Site) -> None:
    """Otherwise somebody could sign others in as himself, and see what they launch."""
    victim, path = site.browser(), site.agree(site.browser())
    assert victim.get(path).headers["location"] == "/#oidc-expired"
    victim.get(START)
    assert victim.get(path).headers["location"] == "/#oidc-expired"
    browser = site.browser()
    path = site.agree(browser)
    assert browser.get(f"{START}/callback?error=access_denied&state=x").headers["location"] == "/#oidc-failed"


def test_code__works_once(site: Site) -> None:
    browser = site.browser()
    path = site.agree(browser)
    state = dict(browser.cookies)
    assert "#login=" in browser.get(path).headers["location"]
    browser.cookies.update(state)
    assert browser.get(path).headers["location"] in ("/#oidc-failed", "/#oidc-expired")
    site.provider.problems.clear()


@pytest.mark.parametrize("change", [{"nonce": "another"}, {"aud": "other"}, {"exp": 7}, {"iss": "https://evil"}])
def test_token_that_does_not_count__signs_nobody_in(site: Site, change: dict[str, object]) -> None:
    site.provider.change = lambda claims: {**claims, **change}
    assert site.sign_in(site.browser()) == "/#oidc-failed"


def test_provider_with_new_keys__is_asked_for_them_again(site: Site) -> None:
    assert "#login=" in site.sign_in(site.browser())
    site.provider.key, site.provider.key_id = new_key(), "two"
    provider = site.app.state.oidc  # type: ignore[attr-defined]
    later = provider.monotonic() + 120.0
    provider.monotonic = lambda: later
    assert "#login=" in site.sign_in(site.browser())


def test_somebody_without_access__is_refused_and_recorded(site: Site) -> None:
    site.provider.claims["groups"] = ["others"]
    assert site.sign_in(site.browser()) == "/#oidc-refused"
    assert "session.oidc denied" in site.actions()
    site.provider.claims["groups"] = ["ml"]
    assert "#login=" in site.sign_in(site.browser())
    with site.daemon.database.begin() as conn:
        conn.exec_driver_sql("UPDATE user_account SET disabled_at = 1.0")
    assert site.sign_in(site.browser()) == "/#oidc-refused"


def test_provider_that_is_away__is_said(site: Site) -> None:
    site.app.state.oidc.config = site.app.state.oidc.config.__class__("http://127.0.0.1:1", "perdure")  # type: ignore[attr-defined]
    assert site.browser().get(START).headers["location"] == "/#oidc-failed"


def test_controller_without_a_provider__offers_none(tmp_path: Path, migrated: Path) -> None:
    shutil.copyfile(migrated, tmp_path / "perdure.db")
    daemon = Daemon(Settings(tmp_path), ManualClock())
    browser = TestClient(create_app(daemon.api_context), base_url=URL, follow_redirects=False)
    assert browser.get(f"{START}/name").json() == {"name": None}
    assert browser.get(START).status_code == browser.get(f"{START}/callback").status_code == 404
    daemon.socket.close()
    daemon.close()


def test_cookie__with_other_bytes_is_no_state(site: Site) -> None:
    browser = site.browser()
    path = f"{START}/callback?code=x&state={'a' * 32}"
    name = f"perdure-oidc-{site.daemon.api_context.controller_id}"
    answer = browser.get(path, headers={"Cookie": f"{name}=\u00e9".encode("latin-1")})
    assert (answer.status_code, answer.headers["location"]) == (303, "/#oidc-expired")


def test_sign_ins__that_succeed_do_not_count_as_failures(site: Site) -> None:
    for _ in range(12):
        assert site.sign_in(site.browser()).startswith("/#login=")


def test_new_user__signs_in_with_several_browsers_at_once(site: Site) -> None:
    site.provider.claims["email"] = "new@example.org"
    browsers = [site.browser() for _ in range(4)]
    paths = [site.agree(browser) for browser in browsers]
    with ThreadPoolExecutor(len(browsers)) as pool:
        done = list(pool.map(lambda one: one[0].get(one[1]), zip(browsers, paths, strict=True)))
    assert [one.headers["location"][:8] for one in done] == ["/#login="] * len(browsers)


def test_browser_that_asked_the_provider__is_not_asked_again(site: Site) -> None:
    browser = site.browser()
    code = site.sign_in(browser).removeprefix("/#login=")
    owner, body = "/api/v1/session/codes/owner", {"code": code, "has_asked": True}
    shown = browser.post(owner, json=body).json()
    assert shown["is_certain"]
    other = site.browser().post(owner, json=body).json()
    assert other == {"user": shown["user"], "is_certain": False}, "a link that somebody sent"
    forged = browser.post(owner, json={"code": code}).json()
    assert not forged["is_certain"], "a server on another port may have set the cookie"
