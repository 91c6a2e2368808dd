"""What a hostile node, user or network can do with streams, on a real daemon: nothing that reaches anybody else."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from e2e.enter.conftest import Entered, launch
from faultworld.hostile_frames import HELLO
from support.helpers.attempt_tokens import attempt_token
from support.helpers.controllers import Controller
from support.helpers.timing import scaled, wait_until

pytestmark = pytest.mark.api

MAX_GROWTH_MIB = 64
MAX_UNREAD_BYTES = 100 * 2**20


def dial(controller: Controller, path: str, token: str, rank: int = 0) -> ClientConnection:
    url = controller.client.endpoint.url.replace("http://", "ws://", 1)
    headers = {"Authorization": f"Bearer {token}", "Perdure-Rank": str(rank)}
    return connect(
        f"{url}{path}", additional_headers=headers, proxy=None, max_size=None, open_timeout=scaled(20), legacy=True
    )


def status(controller: Controller, path: str, token: str, rank: int = 0) -> int:
    """The status of the upgrade."""
    try:
        with dial(controller, path, token, rank):
            return 101
    except InvalidStatus as refused:
        return int(refused.response.status_code)


def open_stream(controller: Controller, **frame: Any) -> ClientConnection:
    user = dial(controller, "/api/v1/streams", controller.client.endpoint.token)
    user.send(json.dumps({"type": "open", "kind": "exec", "argv": ["true"], **frame}))
    return user


def received(socket: ClientConnection) -> dict[str, Any]:
    frame: dict[str, Any] = json.loads(socket.recv(timeout=scaled(30)))
    return frame


def opened(controller: Controller, hostile: HostileNode) -> tuple[ClientConnection, ClientConnection]:
    """Both ends of a stream: the user's and the node's."""
    user = open_stream(controller, name=f"job-{hostile.job}")
    node = hostile.open(hostile.read("open_stream")["id"])
    assert received(node)["kind"] == "exec"
    node.send('{"type": "opened"}')
    assert received(user)["type"] == "opened"
    return user, node


class HostileNode:
    """Takes the place of a job's agent: the controller sends it the requests for streams."""

    def __init__(self, controller: Controller, job: int) -> None:
        self.controller = controller
        self.job = job
        self.token = attempt_token(controller.home, (job, 0, 1))
        self.channel = dial(controller, "/agent/v1/channel", self.token)
        report = (
            {**HELLO["report"], "phase": "running"} if isinstance(HELLO.get("report"), dict) else {"phase": "running"}
        )
        self.channel.send(json.dumps({**HELLO, "report": report}))
        self.read("welcome")

    def read(self, kind: str) -> dict[str, Any]:
        while True:
            frame = received(self.channel)
            if frame["type"] == kind:
                return frame

    def open(self, stream_id: str) -> ClientConnection:
        return dial(self.controller, f"/agent/v1/streams/{stream_id}", self.token)


@pytest.fixture(scope="module")
def hostile_job(controller: Controller) -> int:
    """A job whose real agent is stopped."""
    mine = Entered(controller, launch(controller, "--", "sleep 600"))
    controller.until(lambda: controller.job(mine.job_id)["status"] == "RUNNING", "the hostile job to run")
    # The agent is the parent of the command.
    with mine.popen("jobs", "exec", mine.job_id, "--", "kill -STOP $PPID; sleep 616"):
        wait_until(lambda: mine.processes("sleep\x00616"), "the agent to be stopped", 20)
    return mine.job_id


@pytest.fixture
def hostile(controller: Controller, job: Entered, hostile_job: int) -> Iterator[HostileNode]:
    """A node in the place of the real agent, beside a job that must not notice anything."""
    process = psutil.Process(controller.client.controller()["pid"])
    before = process.memory_info().rss
    node = HostileNode(controller, hostile_job)
    yield node
    node.channel.close()
    assert job.out("echo unharmed") == b"unharmed\n"
    assert (process.memory_info().rss - before) / 2**20 < MAX_GROWTH_MIB
    assert controller.errors() == []


@pytest.mark.parametrize("token", ["", "wrong", "node"])
def test_user_without_the_token__opens_nothing(controller: Controller, job: Entered, token: str) -> None:
    actual = attempt_token(controller.home, (job.job_id, 0, 1)) if token == "node" else token
    assert status(controller, "/api/v1/streams", actual) == 401


@pytest.mark.parametrize("stream_id", ["", "0" * 32, "../../x", "%2e%2e", "0" * 5000])
def test_node__opens_no_stream_by_itself(controller: Controller, job: Entered, stream_id: str) -> None:
    token = attempt_token(controller.home, (job.job_id, 0, 1))
    assert status(controller, f"/agent/v1/streams/{stream_id}", token) == 404
    assert status(controller, f"/agent/v1/streams/{stream_id}", controller.client.endpoint.token) == 401


def test_stream__belongs_to_one_node_and_is_opened_once(
    controller: Controller, job: Entered, hostile: HostileNode
) -> None:
    with open_stream(controller, name=f"job-{hostile.job}"):
        stream_id = hostile.read("open_stream")["id"]
        path, other = f"/agent/v1/streams/{stream_id}", attempt_token(controller.home, (job.job_id, 0, 1))
        assert status(controller, path, other) == 404, "a node of another job, which knows the id"
        assert status(controller, path, hostile.token, rank=1) == 401, "a rank that does not exist"
        with hostile.open(stream_id) as node:
            assert received(node)["kind"] == "exec"
            assert status(controller, path, hostile.token) == 404, "a second time"


@pytest.mark.parametrize(
    "frame",
    ["{}", "[]", "null", "x", '{"type": "resize", "rows": 1, "columns": 1}', '{"type": "exit", "code": 1e999}',
     '{"type": "exit", "code": "0"}', b"\x01" + b"x" * 70_000, '{"type": "error", "pad": "' + "x" * 10_000 + '"}'],
    ids=lambda frame: str(frame[:30]),
)  # fmt: skip
def test_invalid_frame_of_a_node__ends_the_stream_alone(
    controller: Controller, hostile: HostileNode, frame: str | bytes
) -> None:
    before = controller.client.controller()["rejected_frames"]
    user, node = opened(controller, hostile)
    with user, node:
        node.send(frame)
        assert received(user)["type"] == "error"
        with pytest.raises(ConnectionClosed):
            node.recv(timeout=scaled(20))
    if isinstance(frame, str):
        assert controller.client.controller()["rejected_frames"] > before


def test_node_that_floods__is_held_up_by_a_user_who_does_not_read(controller: Controller, hostile: HostileNode) -> None:
    user, node = opened(controller, hostile)
    with user, node:
        node.socket.settimeout(2.0)
        sent = 0
        with contextlib.suppress(TimeoutError, ConnectionClosed, OSError):
            while sent < MAX_UNREAD_BYTES:
                node.send(b"\x01" + b"x" * 32_768)
                sent += 32_769
        assert sent < MAX_UNREAD_BYTES, "nobody has stopped the flood"


def test_node_that_never_calls__is_given_up(controller: Controller, hostile: HostileNode) -> None:
    with open_stream(controller, name=f"job-{hostile.job}") as user:
        last = received(user)
    assert (last["type"], last["status"]) == ("error", 504)
    assert "did not open the stream" in last["message"]


def test_node_that_goes__ends_the_stream(controller: Controller, hostile: HostileNode) -> None:
    user, node = opened(controller, hostile)
    node.close()
    with user, pytest.raises(ConnectionClosed):
        user.recv(timeout=scaled(20))


def test_user_who_goes__ends_the_stream(controller: Controller, hostile: HostileNode) -> None:
    user, node = opened(controller, hostile)
    user.socket.shutdown(socket.SHUT_RDWR)
    with node, pytest.raises(ConnectionClosed):
        node.recv(timeout=scaled(20))


@pytest.mark.parametrize(
    ("frame", "code"),
    [("{}", 400), ("[]", 400), ("x", 400), ('{"type": "open", "name": "job-1", "kind": "exec"}', 400),
     ('{"type": "open", "name": "job-999", "kind": "port", "port": 1}', 404),
     ('{"type": "open", "name": "job-1\\u0000", "kind": "port", "port": 1}', 404)],
)  # fmt: skip
def test_invalid_request_of_a_user__is_one_error(controller: Controller, frame: str, code: int) -> None:
    with dial(controller, "/api/v1/streams", controller.client.endpoint.token) as user:
        user.send(frame)
        last = received(user)
        assert (last["type"], last["status"]) == ("error", code)
        with pytest.raises(ConnectionClosed):
            user.recv(timeout=scaled(20))


def test_streams_of_a_node__are_limited(controller: Controller, hostile: HostileNode) -> None:
    with contextlib.ExitStack() as stack:
        users = [stack.enter_context(open_stream(controller, name=f"job-{hostile.job}")) for _ in range(32)]
        for _ in users:
            hostile.read("open_stream")
        one_more = stack.enter_context(open_stream(controller, name=f"job-{hostile.job}"))
        last = received(one_more)
        assert (last["type"], last["status"]) == ("error", 429)
    wait_until(lambda: accepts(controller, hostile), "room for another stream", 20)


def accepts(controller: Controller, hostile: HostileNode) -> bool:
    with open_stream(controller, name=f"job-{hostile.job}"):
        with contextlib.suppress(TimeoutError):
            return json.loads(hostile.channel.recv(timeout=1.0))["type"] == "open_stream"
        return False


def test_random_ids__are_long(controller: Controller, hostile: HostileNode) -> None:
    with open_stream(controller, name=f"job-{hostile.job}"):
        stream_id = hostile.read("open_stream")["id"]
    assert len(stream_id) == len(secrets.token_hex(16))
    assert int(stream_id, 16) >= 0
