"""Concurrent callers share one request, and none gets a list that is older than it allows."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from perdure.controller.clouds.kubernetes.api.shared_list import SharedList
from perdure.controller.runtime.clock import ManualClock


def pod(uid: str) -> dict[str, Any]:
    return {"metadata": {"uid": uid}}


def uids(listed: list[dict[str, Any]]) -> list[str]:
    return [one["metadata"]["uid"] for one in listed]


def test_list__is_fetched_again_when_it_is_too_old() -> None:
    clock, fetched = ManualClock(), iter(["a", "b", "c"])
    shared = SharedList(lambda: [pod(next(fetched))], clock.now)
    assert uids(shared.get(5.0)) == ["a"]
    clock.advance(5.0)
    assert uids(shared.get(5.0)) == ["a"]
    assert uids(shared.get()) == ["b"], "it was requested before this call"
    clock.advance(5.1)
    assert uids(shared.get(5.0)) == ["c"]


def test_list__is_fetched_once_for_all_that_wait_for_it() -> None:
    clock, released, calls = ManualClock(), threading.Event(), []

    def fetch() -> list[dict[str, Any]]:
        calls.append(1)
        assert released.wait(30)
        return [pod("a")]

    shared = SharedList(fetch, clock.now)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(shared.get, 5.0) for _ in range(4)]
        released.set()
        assert [uids(one.result()) for one in waiting] == [["a"]] * 4
    assert len(calls) == 1


def test_list__has_what_was_created_after_it() -> None:
    clock = ManualClock()
    objects = [pod("a")]
    shared = SharedList(lambda: list(objects), clock.now)
    shared.get()
    clock.advance(1.0)
    shared.add(pod("b"))
    assert uids(shared.get(5.0)) == ["a", "b"]
    objects.append(pod("b"))
    clock.advance(1.0)
    assert uids(shared.get()) == ["a", "b"]
    objects.clear()
    clock.advance(1.0)
    assert uids(shared.get()) == []


def test_failed_fetch__is_repeated_by_the_next_caller() -> None:
    answers: list[Any] = [OSError("away"), [pod("a")]]

    def fetch() -> list[dict[str, Any]]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    shared = SharedList(fetch, ManualClock().now)
    try:
        shared.get()
    except OSError as error:
        assert str(error) == "away"  # noqa: PT017
    assert uids(shared.get()) == ["a"]
