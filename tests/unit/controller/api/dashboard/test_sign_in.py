"""Signing in: codes work once, and a cookie counts only with the page's value, in time, at its own controller."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from perdure.controller.api.access.permissions import authenticate_token
from perdure.controller.api.app import create_app
from perdure.controller.api.dashboard.sign_in import CODE_S, IDLE_S, MAX_AGE_S
from perdure.controller.daemon import Daemon
from perdure.controller.runtime.config.settings import Settings
from unit.controller.api.dashboard.conftest import URL, Dashboard

JOBS = "/api/v1/jobs"
SESSION = "/api/v1/session"


def test_code__signs_in_once(dashboard: Dashboard) -> None:
    code = dashboard.new_code()
    assert dashboard.browser.post(SESSION, json={"code": code}).status_code == 201
    second = TestClient(dashboard.browser.app, base_url=URL).post(SESSION, json={"code": code})
    assert (second.status_code, second.json()["error"]["fix"]) == (401, "run `perdure dashboard` again")
    assert "set-cookie" not in second.headers


def test_code__expires(dashboard: Dashboard) -> None:
    code = dashboard.new_code()
    dashboard.clock.at = dashboard.clock.now() + CODE_S
    assert dashboard.browser.post(SESSION, json={"code": code}).status_code == 401


def test_code_owner__is_shown_without_spending_the_code(dashboard: Dashboard) -> None:
    code = dashboard.new_code()
    shown = dashboard.browser.post(f"{SESSION}/codes/owner", json={"code": code})
    assert (shown.status_code, shown.json()) == (200, {"user": "admin", "is_certain": True})
    other_site = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    wrong = dashboard.browser.post(f"{SESSION}/codes/owner", json={"code": "x"})
    assert wrong.status_code == 401
    assert dashboard.browser.post(SESSION, json={"code": code}, headers=other_site).status_code == 401
    assert dashboard.browser.post(SESSION, json={"code": code}).status_code == 201
    assert dashboard.browser.post(f"{SESSION}/codes/owner", json={"code": code}).status_code == 401


def test_code_owner__is_uncertain_once_there_are_named_users(dashboard: Dashboard) -> None:
    """Somebody else's link would sign a browser in as them."""
    made = dashboard.caller.post("/api/v1/users", json={"name": "eve", "role": "user"})
    assert made.status_code == 201, made.text
    token = dashboard.caller.post("/api/v1/tokens", json={"user": "eve"}).json()["token"]
    headers = {"Authorization": f"Bearer {token}"}
    code = dashboard.caller.post(f"{SESSION}/codes", headers=headers).json()["code"]
    shown = dashboard.browser.post(f"{SESSION}/codes/owner", json={"code": code}).json()
    assert shown == {"user": "eve", "is_certain": False}


def test_code_owner__guesses_are_counted_as_failed_sign_ins(dashboard: Dashboard) -> None:
    answers = [dashboard.browser.post(f"{SESSION}/codes/owner", json={"code": "x"}).status_code for _ in range(12)]
    assert answers[0] == 401
    assert answers[-1] == 429


def test_code__is_not_stored_in_plain_text(dashboard: Dashboard) -> None:
    code = dashboard.new_code()
    with dashboard.daemon.database.connect() as conn:
        dump = str(conn.exec_driver_sql("SELECT name, value FROM meta").all())
    assert "sign_in_code." in dump
    assert code not in dump


def test_expired_codes__are_deleted(dashboard: Dashboard) -> None:
    dashboard.new_code()
    dashboard.clock.at = dashboard.clock.now() + CODE_S
    dashboard.new_code()
    with dashboard.daemon.database.connect() as conn:
        names = conn.exec_driver_sql("SELECT name FROM meta WHERE name LIKE 'sign_in_code.%'").all()
    assert len(names) == 1


def test_cookie__is_closed_to_scripts_and_other_sites(dashboard: Dashboard) -> None:
    response = dashboard.browser.post(SESSION, json={"code": dashboard.new_code()})
    cookie = response.headers["set-cookie"]
    controller = dashboard.daemon.api_context.controller_id
    assert cookie.startswith(f"perdure-{controller}=")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie, "Safari would not accept it on http://127.0.0.1"


def test_cookie__is_bound_to_its_host_with_tls(dashboard: Dashboard) -> None:
    context = dashboard.daemon.api_context
    listen = replace(context.settings.listen, trust_proxy_tls=True)
    behind_proxy = replace(context, settings=replace(context.settings, listen=listen))
    browser = TestClient(create_app(behind_proxy), base_url=URL)
    cookie = browser.post(SESSION, json={"code": dashboard.new_code()}).headers["set-cookie"]
    assert cookie.startswith(f"__Host-perdure-{context.controller_id}=")
    assert "Secure" in cookie.split("; ")


def test_browser__calls_the_api_with_cookie_and_page_value(dashboard: Dashboard) -> None:
    assert dashboard.browser.get(JOBS).status_code == 401
    value = dashboard.sign_in()
    assert dashboard.browser.get(JOBS).status_code == 200
    assert dashboard.browser.post("/api/v1/jobs/cancel", json={"ids": []}).status_code == 200
    for wrong in ("", "x", value[:-1], value.replace(".", "")):
        assert dashboard.browser.get(JOBS, headers={"Perdure-CSRF": wrong}).status_code == 401
        assert dashboard.browser.post("/api/v1/jobs/cancel", headers={"Perdure-CSRF": wrong}).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:9"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_requests_of_other_origins__change_nothing(dashboard: Dashboard, headers: dict[str, str]) -> None:
    dashboard.sign_in()
    for method, path, body in (("POST", "/api/v1/jobs/cancel", {"ids": []}), ("DELETE", SESSION, {})):
        response = dashboard.browser.request(method, path, json=body, headers=headers)
        assert response.status_code == 401
    code = dashboard.new_code()
    assert dashboard.browser.post(SESSION, json={"code": code}, headers=headers).status_code == 401
    assert dashboard.browser.post(SESSION, json={"code": code}).status_code == 201, "the code was not used up"


def test_cookie__expires_when_idle_and_is_renewed_by_the_page(dashboard: Dashboard) -> None:
    dashboard.sign_in()
    start = dashboard.clock.now()
    dashboard.clock.at = start + IDLE_S - 1
    assert dashboard.browser.get(SESSION).status_code == 200
    dashboard.clock.at = start + IDLE_S + 1
    assert dashboard.browser.get(JOBS).status_code == 200
    dashboard.clock.at = start + 2 * IDLE_S
    assert dashboard.browser.get(JOBS).status_code == 401


def test_session__ends_after_a_week_however_often_it_is_renewed(dashboard: Dashboard) -> None:
    dashboard.sign_in()
    start = dashboard.clock.now()
    while dashboard.clock.now() < start + MAX_AGE_S - IDLE_S:
        dashboard.clock.at = dashboard.clock.now() + IDLE_S - 60
        assert dashboard.browser.get(SESSION).status_code == 200
    dashboard.clock.at = start + MAX_AGE_S
    assert dashboard.browser.get(SESSION).status_code == 401


def test_sign_out__ends_copies_of_the_cookie(dashboard: Dashboard) -> None:
    value = dashboard.sign_in()
    cookies = dict(dashboard.browser.cookies)
    assert dashboard.browser.delete(SESSION).status_code == 200
    assert not dict(dashboard.browser.cookies)
    headers = {"Perdure-CSRF": value}
    for app in (dashboard.browser.app, create_app(dashboard.daemon.api_context)):  # here, and at another controller
        copy = TestClient(app, base_url=URL, cookies=cookies, headers=headers)
        assert copy.get(JOBS).status_code == 401


def test_session__ends_when_the_user_token_changes(dashboard: Dashboard) -> None:
    value = dashboard.sign_in()
    context = dashboard.daemon.api_context
    changed = replace(context, keyring=replace(context.keyring, user_token="another"))
    other = TestClient(
        create_app(changed), base_url=URL, cookies=dict(dashboard.browser.cookies), headers={"Perdure-CSRF": value}
    )
    assert other.get(JOBS).status_code == 401


def test_session__survives_a_new_key(dashboard: Dashboard) -> None:
    value = dashboard.sign_in()
    context = dashboard.daemon.api_context
    rotated = replace(context, keyring=context.keyring.with_new_key())
    browser = TestClient(
        create_app(rotated), base_url=URL, cookies=dict(dashboard.browser.cookies), headers={"Perdure-CSRF": value}
    )
    assert browser.get(JOBS).status_code == 200


def test_cookie__is_worthless_at_another_controller(dashboard: Dashboard, tmp_path: Path) -> None:
    value = dashboard.sign_in()
    (tmp_path / "other").mkdir()
    daemon = Daemon(Settings(tmp_path / "other"), dashboard.clock)
    context = daemon.api_context
    (cookie,) = dict(dashboard.browser.cookies).values()
    cookies = {f"perdure-{context.controller_id}": cookie}
    other = TestClient(create_app(context), base_url=URL, cookies=cookies, headers={"Perdure-CSRF": value})
    assert other.get(JOBS).status_code == 401
    daemon.socket.close()
    daemon.close()


def test_cookie__is_found_beside_those_of_other_ports(dashboard: Dashboard) -> None:
    value = dashboard.sign_in()
    ((name, cookie),) = dict(dashboard.browser.cookies).items()
    for header in (f"a=1; {name}={cookie}", f"{name}=x; {name}={cookie}", f'junk; "="; {name}={cookie}'):
        headers = {"Cookie": header, "Perdure-CSRF": value}
        assert TestClient(dashboard.browser.app, base_url=URL, headers=headers).get(JOBS).status_code == 200


def test_wrong_token__is_not_helped_by_a_cookie(dashboard: Dashboard) -> None:
    dashboard.sign_in()
    assert dashboard.browser.get(JOBS, headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_sign_in__rejects_large_bodies(dashboard: Dashboard) -> None:
    assert dashboard.browser.post(SESSION, content=b"x" * 5000).status_code == 413


def test_nodes_routes__accept_no_cookie(dashboard: Dashboard) -> None:
    dashboard.sign_in()
    assert dashboard.browser.get("/agent/v1/spec").status_code == 401


SECRET = "s" * 43
CHALLENGE = hashlib.sha256(SECRET.encode()).hexdigest()


def sign_in_as_eve(dashboard: Dashboard, **token: Any) -> str:
    """The browser is eve's from now on; returns the id of her token. `token`: what it is created with."""
    dashboard.caller.post("/api/v1/users", json={"name": "eve", "role": "user"})
    made = dashboard.caller.post("/api/v1/tokens", json={"user": "eve", **token}).json()
    headers = {"Authorization": f"Bearer {made['token']}"}
    code = dashboard.caller.post(f"{SESSION}/codes", headers=headers).json()["code"]
    response = dashboard.browser.post(SESSION, json={"code": code})
    dashboard.browser.headers["Perdure-CSRF"] = str(response.json()["csrf"])
    return str(made["id"])


def redeem(dashboard: Dashboard, code: str, secret: str = SECRET) -> Any:
    return TestClient(dashboard.browser.app, base_url=URL).post(
        f"{SESSION}/command-line/token", json={"code": code, "secret": secret}
    )


def test_command_line__is_signed_in_by_a_browser(dashboard: Dashboard) -> None:
    token_id = sign_in_as_eve(dashboard)
    code = dashboard.browser.post(f"{SESSION}/command-line", json={"challenge": CHALLENGE}).json()["code"]
    signed_in = redeem(dashboard, code)
    assert (signed_in.status_code, signed_in.json()["user"]) == (201, "eve")
    assert redeem(dashboard, code).status_code == 401, "it works once"
    headers = {"Authorization": f"Bearer {signed_in.json()['token']}"}
    command = TestClient(dashboard.browser.app, base_url=URL, headers=headers)
    assert command.get("/api/v1/whoami").json()["user"] == "eve"
    changed = signed_in.json()["token"].replace(token_id, "A" * len(token_id))
    assert command.get("/api/v1/whoami", headers={"Authorization": f"Bearer {changed}"}).status_code == 401
    again = command.post(f"{SESSION}/command-line", json={"challenge": CHALLENGE})
    assert again.status_code == 409, "a command line signs no other in"
    assert dashboard.caller.delete(f"/api/v1/tokens/{token_id}").status_code == 200
    assert command.get("/api/v1/whoami").status_code == 401, "the token behind it was revoked"


def test_command_line__ends_after_twelve_hours(dashboard: Dashboard) -> None:
    sign_in_as_eve(dashboard)
    code = dashboard.browser.post(f"{SESSION}/command-line", json={"challenge": CHALLENGE}).json()["code"]
    headers = {"Authorization": f"Bearer {redeem(dashboard, code).json()['token']}"}
    command = TestClient(dashboard.browser.app, base_url=URL, headers=headers)
    dashboard.clock.at = dashboard.clock.now() + IDLE_S - 1
    assert command.get("/api/v1/whoami").status_code == 200
    dashboard.clock.at += 1
    assert command.get("/api/v1/whoami").status_code == 401


def signed_in_command_line(dashboard: Dashboard) -> dict[str, Any]:
    code = dashboard.browser.post(f"{SESSION}/command-line", json={"challenge": CHALLENGE}).json()["code"]
    return dict(redeem(dashboard, code).json())


def test_command_line__is_told_when_the_token_behind_it_ends(dashboard: Dashboard) -> None:
    sign_in_as_eve(dashboard, days=1 / 24)
    signed_in = signed_in_command_line(dashboard)
    end = dashboard.clock.now() + 3600
    assert datetime.fromisoformat(signed_in["expires_at"]).timestamp() == pytest.approx(end, abs=1)
    caller = authenticate_token(dashboard.daemon.api_context, signed_in["token"])
    assert caller is not None
    assert caller.valid_until == pytest.approx(end, abs=1)


def test_command_line__cannot_renew_itself_by_a_browser(dashboard: Dashboard) -> None:
    sign_in_as_eve(dashboard)
    headers = {"Authorization": f"Bearer {signed_in_command_line(dashboard)['token']}"}
    refused = TestClient(dashboard.browser.app, base_url=URL, headers=headers).post(f"{SESSION}/codes")
    assert (refused.status_code, "code" in refused.json()) == (403, False)


def test_command_line__has_streams_that_end_with_its_sign_in(dashboard: Dashboard) -> None:
    sign_in_as_eve(dashboard)
    context, token = dashboard.daemon.api_context, signed_in_command_line(dashboard)["token"]
    caller = authenticate_token(context, token)
    assert caller is not None
    assert caller.is_valid()
    dashboard.clock.at = dashboard.clock.now() + IDLE_S
    assert not caller.is_valid()
    assert authenticate_token(context, token) is None


def test_command_line_code__is_useless_without_the_secret(dashboard: Dashboard) -> None:
    sign_in_as_eve(dashboard)
    code = dashboard.browser.post(f"{SESSION}/command-line", json={"challenge": CHALLENGE}).json()["code"]
    assert redeem(dashboard, code, "t" * 43).status_code == 401
    assert redeem(dashboard, code).status_code == 401, "one wrong secret voids it"
    late = dashboard.browser.post(f"{SESSION}/command-line", json={"challenge": CHALLENGE}).json()["code"]
    dashboard.clock.at = dashboard.clock.now() + CODE_S
    assert redeem(dashboard, late).status_code == 401
    assert redeem(dashboard, dashboard.new_code()).status_code == 401, "a browser's code is no command line's"
    dashboard.daemon.api_context.access.tick()
    with dashboard.daemon.database.connect() as conn:
        denied = conn.exec_driver_sql("SELECT address, detail FROM audit WHERE outcome = 'denied'").all()
    assert len(denied) == 4, "each of them is in the audit log"
    assert {(address, "wrong secret" in str(detail)) for address, detail in denied} == {("testclient", True)}


def test_command_line__of_the_controllers_own_token_is_not_signed_in(dashboard: Dashboard) -> None:
    dashboard.sign_in()
    refused = dashboard.browser.post(f"{SESSION}/command-line", json={"challenge": CHALLENGE})
    assert (refused.status_code, "perdure users create" in refused.json()["error"]["fix"]) == (409, True)
