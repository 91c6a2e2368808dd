"""Equal requests for a shared answer do without the router, and nobody gets more or anything else by that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from perdure.controller.api.access import shared_answers, shared_reads
from perdure.controller.api.access.rate_limits import RateLimits
from perdure.controller.api.access.shared_answers import SharedAnswers
from perdure.controller.api.access.shared_reads import SharedReads
from perdure.controller.api.routes import jobs
from unit.controller.api.access.conftest import ALICES, BOBS, Installation

LIST = "/jobs?limit=50&shared=1"
SESSION = "/api/v1/session"
READ = jobs.AccessRight.READ


@pytest.fixture
def routed(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The `status` of each request that the router has handed to the list of jobs."""
    seen: list[str] = []
    parse = jobs._statuses
    monkeypatch.setattr(jobs, "_statuses", lambda text: seen.append(text) or parse(text))
    monkeypatch.setattr(shared_answers, "MIN_INTERVAL_S", 0.0)
    reads = installation.app._app.state.shared_reads
    reads._known.clear()
    reads._answers._answers.clear()
    yield seen
    reads._known.clear()


def ids(response: Any) -> set[int]:
    assert response.status_code == 200, response.text
    return {job["job_id"] for job in response.json()["jobs"]}


def test_equal_requests__are_routed_once_and_answered_alike(installation: Installation, routed: list[str]) -> None:
    plain = {"Accept-Encoding": "identity"}
    answers = [installation.call("root", "GET", LIST, headers=plain) for _ in range(3)]
    assert routed == [""]
    assert len({(one.status_code, one.text, str(sorted(one.headers.items()))) for one in answers}) == 1
    compressed = installation.call("root", "GET", LIST)
    assert (compressed.headers["content-encoding"], compressed.headers["vary"]) == ("gzip", "Accept-Encoding")
    assert ids(compressed) == ids(answers[0])
    assert ids(installation.call("root", "GET", LIST + "&status=RUNNING")) == {ALICES, BOBS}
    assert routed == ["", "RUNNING"]


def test_callers__get_what_they_see(installation: Installation, routed: list[str]) -> None:
    for _ in range(2):
        assert ids(installation.call("root", "GET", LIST)) == {ALICES, BOBS}
        assert ids(installation.call("vera", "GET", LIST)) == {ALICES, BOBS}
        assert ids(installation.call("alice", "GET", LIST)) == {ALICES}
        assert ids(installation.call("bob", "GET", LIST)) == {BOBS}
    assert len(routed) == 3, "those who see everything share an answer"


def test_unknown_and_revoked_tokens__are_refused(installation: Installation, routed: list[str]) -> None:
    token = installation.new_token("vera")
    headers = {"Authorization": f"Bearer {token['token']}"}
    for _ in range(2):
        ids(installation.call("vera", "GET", LIST, headers=headers))
    assert installation.call("root", "DELETE", f"/tokens/{token['id']}").status_code == 200
    for authorization in (headers["Authorization"], "Bearer wrong", ""):
        refused = installation.call("vera", "GET", LIST, headers={"Authorization": authorization})
        assert (refused.status_code, "token" in refused.json()["error"]["message"]) == (401, True)
    assert len(routed) == 1


def test_browsers__use_it_until_they_sign_out(installation: Installation, routed: list[str]) -> None:
    browser = installation.client("root")
    code = browser.post(f"{SESSION}/codes").json()["code"]
    del browser.headers["Authorization"]
    browser.headers |= {"Perdure-CSRF": browser.post(SESSION, json={"code": code}).json()["csrf"]}
    for _ in range(3):
        assert ids(browser.get(f"/api/v1{LIST}")) == {ALICES, BOBS}
    assert len(routed) == 1
    without = browser.get(f"/api/v1{LIST}", headers={"Perdure-CSRF": ""})
    assert without.status_code == 401
    assert browser.delete(SESSION).status_code == 200
    assert browser.get(f"/api/v1{LIST}").status_code == 401


def test_permission__is_needed_here_too(
    installation: Installation, routed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids(installation.call("vera", "GET", LIST))
    known = installation.app._app.state.shared_reads._known
    for key, request in known.items():
        known[key] = shared_reads.KnownRequest(key, jobs.AccessRight.OPERATE, request.compute, request.route)
    ids(installation.call("vera", "GET", LIST))
    assert len(routed) == 2, "a viewer is no operator: the router decides"


def test_calls__count_for_the_limit(
    installation: Installation, routed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(installation.app._app.state._state, "rate_limits", RateLimits(0.3, lambda: 0.0))
    answers = [installation.call("bob", "GET", LIST) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert "limits.requests_per_second" in answers[3].json()["error"]["fix"]


def test_failures__are_reported_by_the_router(
    installation: Installation, routed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_answers, "MAX_AGE_S", 0.0)
    ids(installation.call("root", "GET", LIST))

    def fail(*_: Any) -> None:
        raise OperationalError("SELECT", {}, Exception("the disk is gone"))

    monkeypatch.setattr(jobs.search, "find_ids", fail)
    answer = installation.call("root", "GET", LIST)
    assert (answer.status_code, "the disk is gone" in answer.json()["error"]["message"]) == (503, True)


def test_failures__are_computed_and_counted_once(
    installation: Installation, routed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_answers, "MAX_AGE_S", 0.0)
    ids(installation.call("bob", "GET", LIST))
    computed: list[str] = []

    def fail(*_: Any) -> None:
        computed.append("")
        raise OperationalError("SELECT", {}, Exception("the database is locked"))

    monkeypatch.setattr(jobs.search, "find_ids", fail)
    monkeypatch.setitem(installation.app._app.state._state, "rate_limits", RateLimits(0.2, lambda: 0.0))
    answers = [installation.call("bob", "GET", LIST).status_code for _ in range(3)]
    assert (answers, len(computed)) == ([503, 503, 429], 2)


def test_refused_token__is_one_row_of_the_audit_log(installation: Installation, routed: list[str]) -> None:
    ids(installation.call("root", "GET", LIST))
    before = len(installation.audit(action="token.refused"))
    wrong = {"Authorization": "Bearer perdure_wrong"}
    assert installation.call("root", "GET", LIST, headers=wrong).status_code == 401
    assert len(installation.audit(action="token.refused")) == before + 1


def test_metrics__count_them_with_their_route(installation: Installation, routed: list[str]) -> None:
    requests = installation.daemon.api_context.metrics.http_requests
    before = dict(requests._values)
    for _ in range(3):
        installation.call("root", "GET", LIST)
    counted = {labels: value - before.get(labels, 0) for labels, value in requests._values.items()}
    assert counted["/api/v1/jobs", "GET", "200"] == 3


def test_known_requests__are_bounded(
    installation: Installation, routed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_reads, "_MAX_KNOWN", 2)
    for limit in (1, 2, 3, 3, 2, 1):
        installation.call("root", "GET", f"/jobs?shared=1&limit={limit}")
    assert len(routed) == 4, "the first one was forgotten"
    installation.call("root", "GET", f"/jobs?shared=1&limit=1&name={'x' * 150}&ids={'1,' * 1000}")
    assert len(installation.app._app.state.shared_reads._known) == 2
    assert all(len(query) < 100 for _, query, _ in installation.app._app.state.shared_reads._known)


def test_answers__of_many_leave_the_event_loop_free_between_two() -> None:
    """Those that waited for one computation are not sent in one go: what nodes send is handled in between."""

    async def scenario() -> None:
        loop, reads = asyncio.get_running_loop(), SharedReads(SharedAnswers(lambda: 0))
        scope = {"path": "/x", "query_string": b"", "headers": []}
        computed, turns, sent = asyncio.Event(), 0, []

        async def compute(_: bool) -> bytes:
            await computed.wait()
            return b"{}"

        def turn() -> None:
            nonlocal turns
            turns += 1
            if len(sent) < 50:
                loop.call_soon(turn)

        async def answer() -> None:
            await reads.answer_known(shared_reads.KnownRequest(("/x", b"", None), READ, compute, None), scope)
            sent.append(turns)

        tasks = [asyncio.create_task(answer()) for _ in range(50)]
        await asyncio.sleep(0)
        turn()
        computed.set()
        await asyncio.gather(*tasks)
        assert len(set(sent)) == 50

    asyncio.run(scenario())
