"""Hostile clients on the controller's port, with and without a token: it continues to serve in constant memory."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import psutil
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from support.helpers.attempt_tokens import attempt_token
from support.helpers.controllers import Controller
from support.helpers.timing import scaled

FLOOD, POOL_FILES = 300, 40
REPORT = {"phase": "running", "exit_code": None, "failed_stage": None, "interrupted": False, "message": "", "ip": ""}
HELLO = json.dumps({"type": "hello", "report": REPORT, "logs": {"size": 0}, "agent": "0", "at": 0})


def num_connections(process: psutil.Process) -> int:
    return len(process.net_connections("tcp"))


@pytest.fixture
def daemon(controller: Controller) -> Iterator[psutil.Process]:
    """The daemon's process. At the end it is the same one, responds promptly, and has released all resources."""
    process = psutil.Process(controller.client.controller()["pid"])
    files, connections, memory = process.num_fds(), num_connections(process), process.memory_info().rss
    yield process
    controller.until(lambda: num_connections(process) <= connections + 2, "the end of every connection")
    # The database's pool opens connections when they are needed, and keeps them.
    controller.until(lambda: process.num_fds() <= files + POOL_FILES, "the release of every file")
    began = time.monotonic()
    assert controller.client.controller()["pid"] == process.pid
    assert time.monotonic() - began < scaled(5)
    grown = (process.memory_info().rss - memory) / 2**20
    print(f"grown by {grown:.1f} MiB")
    assert grown < 64
    assert controller.errors() == []


@pytest.fixture
def sleeper(controller: Controller) -> Iterator[tuple[int, str]]:
    """A running job, and the token of its node."""
    job = int(
        controller.client.submit("s", [{"name": "s", "run": "sleep 600"}], user="", key=os.urandom(8).hex())["job_id"]
    )
    controller.until(lambda: controller.job(job)["status"] == "RUNNING", "the job to run")
    yield job, attempt_token(controller.home, (job, 0, 1))
    controller.perdure("jobs", "cancel", job, "--yes", "--no-graceful")


def address(controller: Controller) -> tuple[str, int]:
    parts = urlsplit(controller.client.endpoint.url)
    return str(parts.hostname), int(parts.port or 0)


def channel(controller: Controller, token: str, rank: int = 0) -> ClientConnection:
    """A connection with a node's token. It replaces that of the real node, which then calls again."""
    host, port = address(controller)
    headers = {"Authorization": f"Bearer {token}", "Perdure-Rank": str(rank)}
    return connect(f"ws://{host}:{port}/agent/v1/channel", additional_headers=headers, proxy=None, max_size=None)


@pytest.mark.slow
def test_silent_connections__are_closed(controller: Controller, daemon: psutil.Process) -> None:
    callers = [socket.create_connection(address(controller)) for _ in range(FLOOD)]
    for n, caller in enumerate(callers):
        caller.sendall(b"GET /agent/v1/spec HTTP/1.1\r\nHost: x\r\nX: " if n % 2 else b"")
    began = time.monotonic()
    assert controller.client.controller()["pid"] == daemon.pid
    assert time.monotonic() - began < scaled(5), "others are served meanwhile"
    for caller in callers:
        caller.settimeout(scaled(40))
        with contextlib.suppress(ConnectionResetError):
            assert caller.recv(1) == b""
        caller.close()


@pytest.mark.slow
@pytest.mark.parametrize("garbage", [b"\x00" * 4096, b"\r\n" * 2000, b"GET " + b"x" * 200_000])
def test_garbage__closes_the_connection(controller: Controller, daemon: psutil.Process, garbage: bytes) -> None:
    with socket.create_connection(address(controller)) as caller:
        caller.settimeout(scaled(40))
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            caller.sendall(garbage)
            while caller.recv(4096):
                pass


NONSENSE: list[str | bytes] = [
    "{", "[]", "7", "null", "[" * 100_000, '{"type": 7}', '{"type": "report"}', '{"type": "hello", "report": 5}',
    '{"type": "report", "phase": "dancing"}', '{"type": "notice", "deadline": "soon"}',
    '{"type": "notice", "deadline": NaN}', '{"type": "notice", "deadline": 1e999}',
    '{"type": "report", "phase": "running", "ip": {}}', '{"type": "report", "phase": "running", "message": "\\ud800"}',
    '{"type": "report", "phase": "ended", "exit_code": 1208925819614629174706176}',
    '{"type": "checkpoint", "seq": 1e999, "state": "saved"}', b"", b"no header", b"{}\n", b'{"offset": -5}\nabc',
    b'{"offset": 1e999}\nabc', b'{"offset": "x"}\nabc', b"\n" * 1000,
]  # fmt: skip


def test_invalid_node_message__closes_only_its_connection(
    controller: Controller, daemon: psutil.Process, sleeper: tuple[int, str]
) -> None:
    job, token = sleeper
    for nonsense in NONSENSE:
        with channel(controller, token) as node:
            node.send(HELLO)
            assert json.loads(node.recv(timeout=scaled(20)))["type"] == "welcome"
            with contextlib.suppress(ConnectionClosed, TimeoutError):
                node.send(nonsense)
                node.recv(timeout=0.3)
    assert controller.job(job)["status"] == "RUNNING"
    assert controller.job(job)["recovery_count"] == 0


def test_huge_frame__is_rejected_by_its_header(
    controller: Controller, daemon: psutil.Process, sleeper: tuple[int, str]
) -> None:
    _, token = sleeper
    with channel(controller, token) as node:
        node.send(HELLO)
        node.recv(timeout=scaled(20))
        node.socket.sendall(b"\x82\xff" + struct.pack("!Q", 1 << 40) + b"mask" + b"x" * 4096)
        with pytest.raises(ConnectionClosed):
            node.recv(timeout=scaled(20))


@pytest.mark.slow
def test_hello_flood__leaves_one_connection_per_node(
    controller: Controller, daemon: psutil.Process, sleeper: tuple[int, str]
) -> None:
    _, token = sleeper
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(channel(controller, token)) for _ in range(100)]
        for node in nodes:
            node.send(HELLO)
            node.recv(timeout=scaled(20))
        controller.until(lambda: sum(map(is_open, nodes)) <= 1, "the end of all but the last")


def is_open(node: ClientConnection) -> bool:
    try:
        node.ping().wait(0.2)
    except ConnectionClosed:
        return False
    return True
