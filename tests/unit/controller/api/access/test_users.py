"""The routes of users, tokens and the audit log, and what a token that is no longer valid may still do: nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse

from perdure.controller.api.access.job_owner_cache import JobOwnerCache
from perdure.controller.api.access.permissions import ALL, Caller, authenticate_token
from perdure.controller.api.access.registry import AccessRegistry
from perdure.controller.api.dashboard import events
from perdure.controller.api.dashboard.sign_in import BrowserSession, BrowserSessions
from perdure.controller.api.routes import logs
from perdure.controller.api.tunnel.broker import while_valid
from perdure.controller.store.logs.job_transcript import JobTranscript
from perdure.controller.submit.errors import RequestRejected
from support.helpers.timing import scaled
from unit.controller.api.access.conftest import ALICES, URL, Installation

SESSION = "/api/v1/session"


def new_user(installation: Installation, name: str, **more: Any) -> str:
    """A user with a token, by whose name it is called from now on. Returns the token's id."""
    made = installation.call("root", "POST", "/users", {"name": name, **more})
    assert made.status_code == 201, made.text
    token = installation.new_token(name)
    installation.tokens[name] = token["token"]
    return str(token["id"])


def caller(installation: Installation, user: str) -> Caller:
    found = authenticate_token(installation.daemon.api_context, installation.tokens[user])
    assert found is not None
    return found


def test_user__is_created_once_and_shown(installation: Installation) -> None:
    new_user(installation, "carla", role="operator", max_jobs=3, budget_usd=500)
    again = installation.call("root", "POST", "/users", {"name": "carla"})
    assert again.status_code == 409
    (shown,) = [user for user in installation.call("root", "GET", "/users").json() if user["name"] == "carla"]
    assert (shown["role"], shown["max_jobs"], shown["budget_usd"], shown["budget_action"]) == (
        "operator",
        3,
        500.0,
        "keep",
    )
    changed = installation.call("root", "PATCH", "/users/carla", {"max_jobs": None, "role": "viewer"}).json()
    assert (changed["role"], changed["max_jobs"], changed["budget_usd"]) == ("viewer", None, 500.0)
    me = installation.call("carla", "GET", "/whoami").json()
    assert (me["user"], me["role"], me["token_role"], me["permissions"]) == (
        "carla",
        "viewer",
        "operator",
        ["read", "see_all"],
    )


@pytest.mark.parametrize(
    "name", ["", "admin", "controller", "Alice", "a b", "../x", "a/b", "@a", "a" * 65, "ä", "-a", "a\n"]
)
def test_user__with_an_unusable_name_is_rejected(installation: Installation, name: str) -> None:
    response = installation.call("root", "POST", "/users", {"name": name})
    assert (response.status_code, response.json()["error"]["where"]) == (400, "name")


@pytest.mark.parametrize(
    "body",
    [{"budget_usd": -1}, {"budget_usd": "NaN"}, {"max_jobs": -1}, {"role": "root"}, {"budget_action": "x"}, {"x": 1}],
)
def test_user__with_an_invalid_limit_is_rejected(installation: Installation, body: dict[str, Any]) -> None:
    assert installation.call("root", "PATCH", "/users/alice", body).status_code == 400


def test_user__is_not_added_beside_a_controller_that_knows_no_users(installation: Installation) -> None:
    columns = "id, started_at, lease_until, endpoint, schema_revision"
    with installation.daemon.database.begin() as conn:
        conn.exec_driver_sql(f"INSERT INTO controller ({columns}) VALUES ('old', 0, 1e12, 'http://old', '0004')")
    refused = installation.call("root", "POST", "/users", {"name": "late"})
    with installation.daemon.database.begin() as conn:
        conn.exec_driver_sql("DELETE FROM controller WHERE id = 'old'")
    assert (refused.status_code, refused.json()["error"]["fix"]) == (409, "upgrade all controllers first")
    assert "http://old" in refused.text
    assert installation.call("root", "POST", "/users", {"name": "late"}).status_code == 201


def test_callback__of_a_user_does_not_run_on_the_controller(installation: Installation) -> None:
    """On loopback, where it runs at all: it could read the controller's own token."""
    task = {"run": "true", "event_callback": "id", "resources": {"infra": "local", "cpus": 1}}
    answers = {}
    for user in ("bob", "oscar", "anna", "root"):
        answers[user] = installation.call(user, "POST", "/jobs", {"tasks": [task]}).status_code
    assert answers == {"bob": 403, "oscar": 403, "anna": 201, "root": 201}
    body = {"name": "calls-back", "task": task, "key": "calls-back"}
    assert installation.call("bob", "POST", "/clusters", body).status_code == 403


def test_limit__of_a_user_replaces_that_of_the_configuration(installation: Installation) -> None:
    new_user(installation, "dora", max_jobs=1)
    body = {"tasks": [{"run": "true", "resources": {"infra": "local", "cpus": 1}}]}
    assert [installation.call("dora", "POST", "/jobs", body).status_code for _ in "12"] == [201, 429]
    installation.call("root", "PATCH", "/users/dora", {"max_jobs": 2})
    assert installation.call("dora", "POST", "/jobs", body).status_code == 201


def test_budget__refuses_new_jobs_once_it_is_spent(installation: Installation) -> None:
    new_user(installation, "lena", budget_usd=0)
    body = {"tasks": [{"run": "true", "resources": {"infra": "local", "cpus": 1}}]}
    assert installation.call("lena", "POST", "/jobs", body).status_code == 201
    installation.daemon._budgets.tick()
    refused = installation.call("lena", "POST", "/jobs", body)
    assert (refused.status_code, "has spent the budget of 0 USD" in refused.text) == (429, True)
    assert installation.call("bob", "POST", "/jobs", body).status_code == 201
    assert installation.call("lena", "GET", "/whoami").json()["spent_usd"] == 0.0
    assert installation.call("root", "PATCH", "/users/lena", {"budget_usd": 5}).status_code == 200
    assert installation.call("lena", "POST", "/jobs", body).status_code == 201


def test_token__is_shown_once_and_never_logged(installation: Installation) -> None:
    new_user(installation, "emma")
    secret = installation.tokens["emma"].split("_", 2)[2]
    listed = installation.call("root", "GET", "/tokens", params={"user": "emma"})
    assert listed.json()[0]["user"] == "emma"
    entries = installation.audit(action="token.create")
    assert any(entry["target"].endswith("of emma") for entry in entries)
    assert secret not in listed.text + str(entries)
    with installation.daemon.database.connect() as conn:
        for table in ("audit", "user_token", "meta", "event"):
            assert secret not in str(conn.exec_driver_sql(f"SELECT * FROM {table}").all())


def test_revoked_token__is_refused_everywhere_and_ends_its_session(installation: Installation) -> None:
    token_id = new_user(installation, "frida")
    code = installation.call("frida", "POST", "/session/codes").json()["code"]
    unused = installation.call("frida", "POST", "/session/codes").json()["code"]
    browser = TestClient(installation.app, base_url=URL, headers={"Origin": URL, "Sec-Fetch-Site": "same-origin"})
    browser.headers["Perdure-CSRF"] = browser.post(SESSION, json={"code": code}).json()["csrf"]
    assert browser.get("/api/v1/whoami").json()["user"] == "frida"
    assert installation.call("frida", "DELETE", f"/tokens/{token_id}").status_code == 200, "one's own"
    assert installation.call("frida", "GET", "/jobs").status_code == 401
    assert browser.get("/api/v1/jobs").status_code == 401
    assert browser.post(SESSION, json={"code": unused}).status_code == 401, "a code dies with its token"
    headers = {"Authorization": f"Bearer {installation.tokens['frida']}"}
    with (
        pytest.raises(WebSocketDenialResponse),
        browser.websocket_connect("ws://127.0.0.1/api/v1/streams", headers=headers),
    ):
        pass
    (refused, *_) = installation.audit(action="token.refused", user="frida")
    assert (refused["token"], refused["detail"]) == (token_id, {"reason": "revoked"})


def test_expired_token__is_refused_by_streams_and_calls(installation: Installation) -> None:
    new_user(installation, "gerda")
    installation.tokens["brief"] = installation.new_token("gerda", days=0.001)["token"]
    assert installation.call("brief", "GET", "/jobs").status_code == 200
    started = installation.clock.now()
    installation.clock.advance(87.0)
    assert installation.call("brief", "GET", "/jobs").status_code == 401
    headers = {"Authorization": f"Bearer {installation.tokens['brief']}"}
    with (
        pytest.raises(WebSocketDenialResponse) as denied,
        installation.client("root").websocket_connect("ws://127.0.0.1/api/v1/streams", headers=headers),
    ):
        pass
    assert denied.value.status_code == 401
    installation.clock.at = started


def test_open_streams__end_when_the_token_is_revoked(installation: Installation) -> None:
    """A session on a machine, a log that is followed, and the streams of hints of a caller and of a browser."""
    context = installation.daemon.api_context
    token_id = new_user(installation, "hilde", role="viewer")
    who = caller(installation, "hilde")

    async def scenario() -> None:
        session = asyncio.ensure_future(while_valid(who, asyncio.sleep(3600)))
        transcript = JobTranscript(context.database, context.logs, ALICES)
        followed = logs._stream(who, transcript, (), 0, True)
        owners = JobOwnerCache(context.database)
        hints = events._hints(who, BrowserSessions(context), None, owners, 3600.0)
        signed_in = BrowserSession(f"{token_id}~x", context.clock.now(), context.clock.now() + 3600)
        of_browser = events._hints(who, BrowserSessions(context), signed_in, owners, 3600.0)
        for stream in (hints, of_browser):
            assert (await anext(stream)).startswith(b"event: hello")
        streams = [asyncio.ensure_future(_drain(stream)) for stream in (followed, hints, of_browser)]
        await asyncio.sleep(0)
        assert not session.done()
        revoked = await asyncio.to_thread(installation.call, "root", "DELETE", f"/tokens/{token_id}")
        assert revoked.status_code == 200
        async with asyncio.timeout(scaled(5.0)):
            await asyncio.gather(*streams)
            with pytest.raises(RequestRejected, match="revoked") as ended:
                await session
        assert ended.value.status == 401

    asyncio.run(scenario())


async def _drain(stream: Any) -> None:
    async for _ in stream:
        pass


def test_hints__name_the_callers_jobs_only(installation: Installation) -> None:
    context = installation.daemon.api_context

    async def scenario() -> list[bytes]:
        owners = JobOwnerCache(context.database)
        hints = events._hints(caller(installation, "bob"), BrowserSessions(context), None, owners, 3600.0)
        received = [await anext(hints)]
        for job_id in (ALICES, 3, ALICES):
            context.job_updates.publish_job(job_id)
        received.append(await asyncio.wait_for(anext(hints), scaled(10)))
        context.job_updates.publish_job(ALICES)  # nothing is sent for it, not even a comment
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(hints), 1.5)
        return received

    assert asyncio.run(scenario())[1] == b'event: jobs\ndata: {"ids":[3]}\n\n'


def test_disabled_user__is_refused(installation: Installation) -> None:
    new_user(installation, "ida")
    installation.call("root", "PATCH", "/users/ida", {"disabled": True})
    assert installation.call("ida", "GET", "/jobs").status_code == 401
    installation.call("root", "PATCH", "/users/ida", {"disabled": False})
    assert installation.call("ida", "GET", "/jobs").status_code == 200


def test_refusals__are_the_same_whatever_is_wrong(installation: Installation) -> None:
    token_id = new_user(installation, "jana")
    installation.call("root", "DELETE", f"/tokens/{token_id}")
    right = installation.tokens["jana"]
    texts = set()
    for token in (right, right[:-1] + "x", "pdu_AAAAAAAAAA_" + "A" * 43, "wrong", ""):
        response = TestClient(installation.app, base_url=URL).get(
            "/api/v1/jobs", headers={"Authorization": f"Bearer {token}"}
        )
        texts.add((response.status_code, response.text))
    assert len(texts) == 1


def test_audit__says_who_did_what(installation: Installation) -> None:
    new_user(installation, "kora", role="operator")
    body = {"tasks": [{"run": "true", "name": "t", "resources": {"infra": "local"}, "secrets": {"KEY": "hunter2"}}]}
    job_id = installation.call("kora", "POST", "/jobs", body).json()["job_id"]
    installation.call("kora", "POST", "/jobs/cancel", {"ids": [job_id]})
    installation.call("kora", "GET", "/users")
    installation.call("kora", "POST", "/session", {"code": "wrong"})
    entries = installation.audit(user="kora")
    assert [(entry["action"], entry["target"], entry["outcome"]) for entry in entries][::-1] == [
        ("job.submit", f"job {job_id}", "allowed"),
        ("job.cancel", f"job {job_id}", "allowed"),
        ("GET /api/v1/users", "", "denied"),
    ]
    assert installation.audit(action="session.sign_in", outcome="denied")
    assert installation.audit(action="user.create")[0]["user"] == "admin"
    assert "hunter2" not in str(installation.audit())
    assert entries[0]["token"] == installation.tokens["kora"].split("_")[1]
    pages = installation.audit(limit=2), installation.audit(limit=2, before=installation.audit(limit=2)[-1]["id"])
    assert len({entry["id"] for page in pages for entry in page}) == 4


def test_file_token__names_nobody_as_long_as_there_are_no_users(installation: Installation) -> None:
    context = installation.daemon.api_context
    alone = Caller(replace(context, access=AccessRegistry()), "admin", ALL)
    assert (alone.user_for("ada"), alone.key_for("k")) == ("ada", "k")
    assert caller(installation, "root").user_for("ada") == "admin"
    assert caller(installation, "bob").key_for("k") == "@bob/k"
