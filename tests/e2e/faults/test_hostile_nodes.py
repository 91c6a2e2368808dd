"""A hostile job speaks the agent protocol to a real daemon, with its token and without: nobody else is harmed.

It sends valid, invalid and mutated frames, and garbage (`faultworld.hostile_frames`).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from faultworld.hostile_frames import HELLO, Frame, hostile_frame, invalid_frame
from support.helpers.attempt_tokens import attempt_token
from support.helpers.controllers import Controller
from support.helpers.timing import scaled

pytestmark = pytest.mark.api

BUDGET_S = 20.0  # of all examples of a test, on an idle machine
EXAMPLES = 60
MAX_GROWTH_MIB = 64


def launch(controller: Controller, name: str, run: str) -> int:
    task = {"name": name, "run": run}
    return int(controller.client.submit(name, [task], user="", key=os.urandom(8).hex())["job_id"])


@pytest.fixture
def bystander(controller: Controller) -> Iterator[int]:
    """A job that runs beside the hostile one. At the end it is unharmed, and so is the daemon."""
    job = launch(controller, "bystander", "sleep 600")
    controller.until(lambda: controller.job(job)["status"] == "RUNNING", "the bystander to run")
    process = psutil.Process(controller.client.controller()["pid"])
    before = process.memory_info().rss
    yield job
    assert controller.job(job)["status"] == "RUNNING"
    assert controller.job(job)["recovery_count"] == 0
    late = launch(controller, "late", "true")
    controller.until(lambda: controller.job(late)["status"] == "SUCCEEDED", "a job that was launched afterwards")
    assert requests.get(f"{controller.client.endpoint.url}/healthz", timeout=scaled(10)).json() == {"status": "ok"}
    assert controller.client.controller()["pid"] == process.pid
    assert (process.memory_info().rss - before) / 2**20 < MAX_GROWTH_MIB
    assert controller.errors() == []
    controller.perdure("jobs", "cancel", job, "--yes", "--no-graceful")


@pytest.fixture
def token(controller: Controller) -> Iterator[str]:
    """The token of the hostile job's node."""
    job = launch(controller, "hostile", "sleep 600")
    controller.until(lambda: controller.job(job)["status"] == "RUNNING", "the hostile job to run")
    yield attempt_token(controller.home, (job, 0, 1))
    controller.perdure("jobs", "cancel", job, "--yes", "--no-graceful")


def channel(controller: Controller, token: str) -> ClientConnection:
    url = controller.client.endpoint.url.replace("http://", "ws://", 1)
    headers = {"Authorization": f"Bearer {token}", "Perdure-Rank": "0"}
    return connect(
        f"{url}/agent/v1/channel", additional_headers=headers, proxy=None, max_size=None, open_timeout=scaled(20)
    )


def send_all(node: ClientConnection, frames: list[Frame]) -> None:
    with contextlib.suppress(ConnectionClosed):
        for frame in frames:
            node.send(frame)


def close_frame(node: ClientConnection) -> Any:
    """The close frame of the controller, after what it sends before that; None if it sends none."""
    try:
        while True:
            node.recv(timeout=scaled(20))
    except ConnectionClosed as closed:
        return closed.rcvd
    except TimeoutError:
        return None


def sequences(make: Any) -> Any:
    """Sequences of hostile frames; Hypothesis shortens those that fail."""
    return st.randoms(use_true_random=False).map(lambda rng: [make(rng) for _ in range(rng.randint(1, 12))])


def examples(check: Any, strategy: Any) -> None:
    """Call `check` with examples, for a limited time."""
    ends_at = time.monotonic() + scaled(BUDGET_S)

    def checked(frames: list[Frame]) -> None:
        if time.monotonic() < ends_at:
            check(frames)

    phases = (Phase.explicit, Phase.generate)
    run = settings(
        max_examples=EXAMPLES, phases=phases, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    run(given(strategy)(checked))()


def test_hostile_frames__harm_nobody_else(controller: Controller, bystander: int, token: str) -> None:
    def check(frames: list[Frame]) -> None:
        with contextlib.suppress(WebSocketException, TimeoutError), channel(controller, token) as node:
            if len(frames) % 3:
                node.send(json.dumps(HELLO))
            send_all(node, [frame for frame in frames if not isinstance(frame, str) or is_text(frame)])

    examples(check, sequences(hostile_frame))


def is_text(frame: str) -> bool:
    try:
        frame.encode()
    except UnicodeEncodeError:  # the library does not send it
        return False
    return True


def test_invalid_frame__closes_the_connection_with_a_reason(controller: Controller, bystander: int, token: str) -> None:
    before = controller.client.controller()["rejected_frames"]
    count = [0]

    def check(frames: list[Frame]) -> None:
        with channel(controller, token) as node:
            node.send(json.dumps(HELLO))
            assert json.loads(node.recv(timeout=scaled(20)))["type"] == "welcome"
            send_all(node, frames[:1])
            received = close_frame(node)
        assert received is not None, f"no close frame after {frames[0]!r:.300}"
        if received.code == 1000:
            return  # the real node has called meanwhile, and this connection was replaced
        assert (received.code, bool(received.reason)) == (1007, True), f"{received} after {frames[0]!r:.300}"
        count[0] += 1

    examples(check, sequences(invalid_frame))
    assert count[0] > 0
    assert controller.client.controller()["rejected_frames"] - before >= count[0]
    lines = [line for line in (controller.home / "controller.log").read_text().splitlines() if "invalid_frame" in line]
    assert 1 <= len(lines) <= 10, "one line per attempt and minute"


def test_node_without_a_valid_token__gets_no_connection(controller: Controller, bystander: int) -> None:
    def check(frames: list[Frame]) -> None:
        words = [frame if isinstance(frame, str) else frame.decode("latin-1") for frame in frames]
        forged = "".join(c for c in words[0] if c.isascii() and c.isprintable())[:200].strip() or "x"
        with pytest.raises(InvalidStatus) as refused, channel(controller, forged) as node:
            send_all(node, frames)
        assert refused.value.response.status_code == 401

    examples(check, sequences(hostile_frame))


def test_generator__draws_the_same_frames_from_the_same_seed() -> None:
    drawn = [[hostile_frame(random.Random(seed)) for _ in range(2)] for seed in range(50)]
    assert all(first == second for first, second in drawn)
    assert len({first for first, _ in drawn}) > 20


def send_false_notice(controller: Controller, job: int, generation: int) -> None:
    """Send a notice that no cloud has sent, and a rebalance recommendation, with the token of the job's node."""
    token = attempt_token(controller.home, (job, 0, generation))
    with contextlib.suppress(WebSocketException, TimeoutError), channel(controller, token) as node:
        node.send(json.dumps(HELLO))
        assert json.loads(node.recv(timeout=scaled(20)))["type"] == "welcome"
        at = HELLO["at"]  # of the node's clock, which may be any
        for notice in ({"action": "rebalance"}, {"action": "terminate", "deadline": at + 60}):
            node.send(json.dumps({"type": "notice", "at": at, **notice}))
        close_frame(node)


def test_false_notices__count_for_their_own_job(controller: Controller, bystander: int) -> None:
    liar = launch(controller, "liar", "sleep 600")
    for generation in range(1, 4):
        controller.until(
            lambda generation=generation: (  # type: ignore[misc]
                controller.job(liar)["generation"] == generation and controller.job(liar)["status"] == "RUNNING"
            ),
            f"attempt {generation}",
        )
        send_false_notice(controller, liar, generation)
        controller.until(lambda g=generation: controller.job(liar)["generation"] > g, "a recovery")  # type: ignore[misc]
    with contextlib.closing(sqlite3.connect(controller.home / "perdure.db")) as database:
        avoided = database.execute("select job_id from unavailable_offer where from_preemption").fetchall()
    assert avoided == [(liar,)] * 3
    kinds = [entry["kind"] for entry in controller.job(liar)["timeline"]]
    assert kinds.count("node.notice") == kinds.count("node.rebalance_recommended") == 3
    controller.perdure("jobs", "cancel", liar, "--yes", "--no-graceful")
