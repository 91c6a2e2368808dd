"""Fifty callers that stream for a minute each: the service grows soon after its delay, never beyond its maximum."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from perdure.sdk import serve
from support.helpers.services import ServiceHost, service_task
from support.helpers.timing import scaled

pytestmark = pytest.mark.slow

NAME, CALLERS, EVENTS, MOST = "growing", 50, 60, 3
DELAY_S, WITHIN_S = 3.0, 30.0


def task(model: str, memory: str = "1+") -> Any:
    policy = {
        "min_replicas": 1,
        "max_replicas": MOST,
        "target_ongoing_requests_per_replica": 10,
        "upscale_delay_seconds": DELAY_S,
    }
    more = {"envs": {"TOKEN_S": "1", "MODEL": model}, "resources": {"memory": memory}}
    return service_task({"replica_policy": policy}, **more)


def test_load__of_fifty_streams_is_answered_by_more_replicas(sky: ServiceHost) -> None:
    caller = sky.up(NAME, task("first"), ready=1)
    counts, stopped, failed = set[int](), threading.Event(), []

    def watch() -> None:
        while not stopped.wait(0.2):
            live = [one for one in sky.get(NAME)["replicas"] if not one["ended_at"]]
            counts.add(len(live))  # with those that answer their last requests

    def call() -> None:
        try:
            events = list(caller.stream(EVENTS))
        except Exception as error:
            failed.append(repr(error))
        else:
            failed.extend(str(event) for event in events if "error" in event)

    watcher = threading.Thread(target=watch, daemon=True)
    callers = [threading.Thread(target=call, daemon=True) for _ in range(CALLERS)]
    for thread in (watcher, *callers):
        thread.start()
    began = time.monotonic()
    sky.until_ready(NAME, MOST)
    grown_after_s = time.monotonic() - began
    print(
        f"\n{MOST} replicas were ready {grown_after_s:.1f} s after the first call, of which {DELAY_S:g} s are the delay"
    )
    assert grown_after_s < scaled(DELAY_S + WITHIN_S)
    serve.update(task("second", "2+"), NAME, client=sky.client)
    sky.until(NAME, lambda _: {one["version"] for one in sky.ready(NAME)} == {2}, "the new version alone")
    for thread in callers:
        thread.join()
    stopped.set()
    watcher.join()
    assert failed == []
    assert max(counts) <= MOST
    sky.controller.perdure("serve", "down", NAME, "--yes")
