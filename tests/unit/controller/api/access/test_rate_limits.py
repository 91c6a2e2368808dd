"""Limits of calls and of failed sign-ins."""

from __future__ import annotations

import pytest

from perdure.controller.api.access import rate_limits
from perdure.controller.api.access.rate_limits import MAX_SIGN_IN_FAILURES, RateLimit, RateLimits, TooManyRequests
from unit.controller.api.access.conftest import Installation
from unit.controller.api.access.test_users import SESSION, new_user


class Time:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def test_bucket__lets_a_burst_through_and_then_a_steady_rate() -> None:
    now = Time()
    limit = RateLimit(per_second=2.0, burst=3.0, now=now)
    assert [limit.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert limit.take("b") == 0.0, "everybody has their own"
    now.at += 0.5
    assert [limit.take("a"), limit.take("a")] == [0.0, 0.5]
    assert limit.wait_s("a") == 0.5
    now.at += 100.0
    assert [limit.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_memory__is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "_MAX_KEYS", 10)
    now = Time()
    limit = RateLimit(per_second=1.0, burst=1.0, now=now)
    for number in range(1000):
        now.at += 0.3
        assert limit.take(f"address {number}") == 0.0
        assert len(limit._buckets) <= 10
    assert limit.take("address 999") > 0.0, "those of this moment are not forgotten"


@pytest.mark.parametrize("per_second", [None, 1e9])
def test_calls_within_the_limit__are_not_refused(per_second: float | None) -> None:
    limits = RateLimits(per_second)
    for _ in range(1000):
        limits.count_call("ada")


def test_user_who_calls_too_often__is_asked_to_wait(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = Time()
    monkeypatch.setitem(installation.app._app.state._state, "rate_limits", RateLimits(0.2, now))
    new_user(installation, "hasty")
    answers = [installation.call("hasty", "GET", "/jobs") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].headers["Retry-After"] == "5"
    assert "limits.requests_per_second" in answers[2].json()["error"]["fix"]
    second = installation.new_token("hasty")["token"]
    answer = installation.call("hasty", "GET", "/jobs", headers={"Authorization": f"Bearer {second}"})
    assert answer.status_code == 429, "another token of theirs has no limit of its own"
    assert installation.call("bob", "GET", "/jobs").status_code == 200
    assert {installation.call("root", "GET", "/jobs").status_code for _ in range(20)} == {200}
    now.at += 5.0
    assert installation.call("hasty", "GET", "/jobs").status_code == 200


def test_failed_sign_ins__are_limited_by_address(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    now = Time()
    monkeypatch.setitem(installation.app._app.state._state, "rate_limits", RateLimits(None, now))
    browser = installation.client("root")

    def sign_in(code: str) -> int:
        return int(browser.post(SESSION, json={"code": code}, headers={"Authorization": ""}).status_code)

    good = str(browser.post(f"{SESSION}/codes").json()["code"])
    assert {sign_in("wrong") for _ in range(MAX_SIGN_IN_FAILURES)} == {401}
    assert [sign_in("wrong"), sign_in(good)] == [429, 429]
    now.at += 6.0
    assert sign_in(good) == 201


def test_refusal__names_the_time_to_wait() -> None:
    assert TooManyRequests("slowly", 0.2, "").retry_after_s == 1
    assert TooManyRequests("slowly", 2.1, "").retry_after_s == 3
