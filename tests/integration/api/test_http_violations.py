"""Clients that violate HTTP, on raw sockets: no hang, no traceback, and the daemon serves others afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import psutil
import pytest
import requests

from integration.api.daemons import Daemon, StartDaemon
from perdure.controller.api.server.protocols import HEADER_TIMEOUT_S
from support.helpers.timing import scaled, wait_until

pytestmark = pytest.mark.api

TIMEOUT_S = 30.0
TOKEN = b"@TOKEN@"
HEAD = b"Host: 127.0.0.1\r\nAuthorization: Bearer " + TOKEN + b"\r\n"
JSON = HEAD + b"Content-Type: application/json\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
UPGRADE += b"MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
ZEROS = b"0" * 64
SPARE = 5  # threads, and files, that the daemon may open for itself while a test runs


def send(daemon: Daemon, *parts: bytes, finish: bool = False, idle_s: float = TIMEOUT_S) -> bytes:
    """Send, and read until the daemon closes, or sends nothing for `idle_s`. `finish`: shut down sending first."""
    with socket.create_connection(daemon.address, timeout=scaled(TIMEOUT_S)) as connection:
        try:
            for part in parts:
                connection.sendall(part.replace(TOKEN, daemon.token.encode()))
            if finish:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # rejected before everything was sent
        response = b""
        connection.settimeout(idle_s)
        try:
            while data := connection.recv(65536):
                response += data
                connection.settimeout(min(idle_s, 0.3))
        except (ConnectionResetError, TimeoutError):
            pass
    return response


def statuses(response: bytes) -> list[int]:
    return [int(line.split()[1]) for line in response.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]


HOSTILE: dict[str, tuple[bytes, ...]] = {
    "nothing": (),
    "no http": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n",),
    "bytes": (os.urandom(4096),),
    "no host": (b"GET /healthz HTTP/1.1\r\n\r\n",),
    "two hosts": (b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: 127.0.0.1\r\n\r\n",),
    "http 0.9": (b"GET /healthz\r\n",),
    "http 9": (b"GET /healthz HTTP/9.9\r\n" + HEAD + b"\r\n",),
    "odd method": (b"BREW /healthz HTTP/1.1\r\n" + HEAD + b"\r\n",),
    "long method": (b"G" * 100_000 + b" / HTTP/1.1\r\n\r\n",),
    "long path": (b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n" + HEAD + b"\r\n",),
    "path of bad utf-8": (b"GET /api/v1/jobs/%ff%fe%00 HTTP/1.1\r\n" + HEAD + b"\r\n",),
    "path of raw bytes": (b"GET /api/v1/\xff\xfe HTTP/1.1\r\n" + HEAD + b"\r\n",),
    "query of bad utf-8": (b"GET /api/v1/jobs?name=%ff&status=%c3%28&ids=%00 HTTP/1.1\r\n" + HEAD + b"\r\n",),
    "path upwards": (b"GET /agent/v1/uploads/../../../etc/passwd HTTP/1.1\r\n" + HEAD + b"\r\n",),
    "path upwards, encoded": (b"GET /api/v1/uploads/%2e%2e%2f%2e%2e%2ftoken HTTP/1.1\r\n" + HEAD + b"\r\n",),
    "absolute form": (b"GET http://evil.example/api/v1/jobs HTTP/1.1\r\n" + HEAD + b"\r\n",),
    "huge header": (b"GET /healthz HTTP/1.1\r\n" + HEAD + b"X: " + b"a" * 5_000_000 + b"\r\n\r\n",),
    "many headers": (b"GET /healthz HTTP/1.1\r\n" + HEAD + b"X: a\r\n" * 100_000 + b"\r\n",),
    "header with a break": (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\r\n b\r\n\r\n",),
    "header of bytes": (b"GET /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer \xff\xfe\r\n\r\n",),
    "length that is none": (b"POST /api/v1/jobs HTTP/1.1\r\n" + JSON + b"Content-Length: -1\r\n\r\n{}",),
    "length of letters": (b"POST /api/v1/jobs HTTP/1.1\r\n" + JSON + b"Content-Length: ten\r\n\r\n{}",),
    "length beyond": (b"POST /api/v1/jobs HTTP/1.1\r\n" + JSON + b"Content-Length: " + b"9" * 60 + b"\r\n\r\n{}",),
    "less than its length": (b"POST /api/v1/jobs HTTP/1.1\r\n" + JSON + b"Content-Length: 100\r\n\r\n{}",),
    "two lengths": (b"POST /api/v1/jobs HTTP/1.1\r\n" + JSON + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",),
    "length and chunks": (
        b"POST /api/v1/plan HTTP/1.1\r\n" + JSON + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    "broken chunk": (b"POST /api/v1/jobs HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",),
    "endless chunk": (
        b"POST /api/v1/jobs HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 5000 + b"\r\n",
    ),
    "chunk cut short": (b"POST /api/v1/jobs HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n10\r\n{",),
    "deep json": (
        b"POST /api/v1/plan HTTP/1.1\r\n" + JSON + b"Content-Length: 200000\r\n\r\n" + b"[" * 200_000,
    ),
    "upload cut short": (b"PUT /api/v1/uploads/" + ZEROS + b" HTTP/1.1\r\n" + HEAD + b"Content-Length: 9\r\n\r\n123",),
    "websocket on a wrong route": (b"GET /api/v1/jobs HTTP/1.1\r\n" + HEAD + UPGRADE + b"\r\n",),
    "websocket without a token": (b"GET /agent/v1/channel HTTP/1.1\r\nHost: 127.0.0.1\r\n" + UPGRADE + b"\r\n",),
    "websocket to nowhere": (b"GET /nowhere HTTP/1.1\r\n" + HEAD + UPGRADE + b"\r\n",),
    "websocket for another host": (b"GET /agent/v1/channel HTTP/1.1\r\nHost: evil.example\r\n" + UPGRADE + b"\r\n",),
    "websocket of version 99": (
        b"GET /agent/v1/channel HTTP/1.1\r\n" + HEAD + UPGRADE.replace(b": 13", b": 99") + b"\r\n",
    ),
    "channel without upgrade": (b"GET /agent/v1/channel HTTP/1.1\r\n" + HEAD + b"\r\n",),
    "smuggled": (
        b"POST /healthz HTTP/1.1\r\n" + HEAD + b"Content-Length: 5\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\n" + HEAD,
        b"\r\n",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _unharmed(daemon: Daemon) -> Iterator[None]:
    yield
    assert requests.get(f"{daemon.url}/healthz", timeout=scaled(TIMEOUT_S)).json() == {"status": "ok"}
    assert daemon.errors() == []
    assert not list((daemon.home / "uploads").glob(".upload-*")), "a partial upload is left"


@pytest.mark.parametrize("name", HOSTILE)
def test_malformed_request__is_rejected(daemon: Daemon, name: str) -> None:
    for finish in (False, True):
        response = send(daemon, *HOSTILE[name], finish=finish, idle_s=0.5)
        assert all(200 <= status < 500 for status in statuses(response)), response[:500]
        assert b"Traceback" not in response
        assert daemon.token.encode() not in response


def test_connection_reset__at_any_byte_is_harmless(daemon: Daemon) -> None:
    """Reset, not closed, in the head, in the body and in the response."""
    body = b'{"tasks": [{"run": "true"}]}'
    head = b"POST /api/v1/plan HTTP/1.1\r\n" + JSON + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    whole = (head + body).replace(TOKEN, daemon.token.encode())
    assert statuses(send(daemon, whole)) == [200]
    process = psutil.Process(daemon.process.pid)
    threads, files = process.num_threads(), process.num_fds()
    ends = [*range(0, len(whole), 7), len(whole)]
    assert len(ends) > 4 * SPARE, "one left over by each reset shows"
    for end in ends:
        with socket.create_connection(daemon.address, timeout=scaled(TIMEOUT_S)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(whole[:end])
    # Connections are accepted in order: the daemon has seen every reset one once it answers this.
    assert statuses(send(daemon, whole)) == [200]
    wait_until(lambda: process.num_fds() <= files + SPARE, "the end of every connection")
    assert process.num_threads() <= threads + SPARE
    assert daemon.errors() == []


def test_body__may_arrive_in_single_bytes(daemon: Daemon) -> None:
    body = json.dumps({"tasks": []}).encode()
    head = b"POST /api/v1/plan HTTP/1.1\r\n" + JSON + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = [b"1\r\n%c\r\n" % byte for byte in body]
    response = send(daemon, head, *chunks, b"0\r\n\r\n")
    assert statuses(response) == [400]
    assert b"the job has no task" in response


def test_idle_clients__do_not_delay_others(daemon: Daemon) -> None:
    """Two hundred clients that send the start of a request and no more."""
    idle = [socket.create_connection(daemon.address, timeout=scaled(TIMEOUT_S)) for _ in range(200)]
    try:
        for index, connection in enumerate(idle):
            connection.sendall((b"GET /healthz HTTP/1.1\r\nHost: 1", b"PUT /api/v1/uploads/0 HTTP/1.1\r\n")[index % 2])
        started_at = time.monotonic()
        assert requests.get(f"{daemon.url}/healthz", timeout=scaled(TIMEOUT_S)).ok
        assert time.monotonic() - started_at < scaled(TIMEOUT_S / 2)
    finally:
        for connection in idle:
            connection.close()


SLOW_HEADS: dict[str, bytes] = {
    "nothing": b"",
    "a first head": b"GET /healthz HTTP/1.1\r\nHost: 1",
    "a second head": b"GET /healthz HTTP/1.1\r\n" + HEAD + b"\r\nGET /healthz HTTP/1.1\r\nHost: 1",
    "a body that is not read": b"POST /nowhere HTTP/1.1\r\n" + HEAD + b"Content-Length: 1000000\r\n\r\n1",
    "a body without a token": b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n1",
}


def test_slow_head__is_disconnected(daemon: Daemon) -> None:
    """The time limit holds for each head, and for a body that is not read."""
    connections = {name: socket.create_connection(daemon.address, timeout=scaled(TIMEOUT_S)) for name in SLOW_HEADS}
    for name, connection in connections.items():
        connection.sendall(SLOW_HEADS[name].replace(TOKEN, daemon.token.encode()))
    started_at, left = time.monotonic(), dict(connections)
    while left:
        assert time.monotonic() - started_at < HEADER_TIMEOUT_S + scaled(TIMEOUT_S), f"still open: {set(left)}"
        Event().wait(1.0)
        for name, connection in list(left.items()):
            try:
                connection.sendall(b"0" if name != "nothing" else b"")
                connection.settimeout(0.05)
                while connection.recv(65536):
                    pass
                del left[name]
            except TimeoutError:
                continue
            except OSError:
                del left[name]
    assert time.monotonic() - started_at > HEADER_TIMEOUT_S / 2


def test_unauthenticated_body__is_rejected_by_its_head(daemon: Daemon) -> None:
    """The response is sent before any of the body has arrived."""
    for path in (b"/api/v1/jobs", b"/api/v1/plan", b"/api/v1/uploads/" + ZEROS):
        method = b"PUT " if b"uploads" in path else b"POST "
        head = method + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n"
        assert statuses(send(daemon, head)) == [401]


def test_endless_body__is_rejected_while_it_arrives(daemon: Daemon) -> None:
    head = b"POST /api/v1/plan HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n"
    block = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    assert statuses(send(daemon, head, *[block] * 40)) in ([413], [])


def put_upload(daemon: Daemon, digest: str, body: bytes) -> requests.Response:
    headers = {"Authorization": f"Bearer {daemon.token}"}
    return requests.put(f"{daemon.url}/api/v1/uploads/{digest}", data=body, headers=headers, timeout=scaled(TIMEOUT_S))


def test_upload__must_match_its_digest(daemon: Daemon) -> None:
    response = put_upload(daemon, "0" * 64, b"something else")
    assert response.status_code == 400
    assert "do not match the digest" in response.json()["error"]["message"]
    assert not (daemon.home / "uploads" / ("0" * 64)).exists()


def test_upload__by_concurrent_clients_is_stored_once(daemon: Daemon) -> None:
    body = os.urandom(3_000_000)
    digest = hashlib.sha256(body).hexdigest()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: put_upload(daemon, digest, body).status_code, range(16)))
    assert set(results) <= {200, 201}
    assert (daemon.home / "uploads" / digest).read_bytes() == body


def test_upload__aborted_leaves_no_file(daemon: Daemon) -> None:
    uploads, digest = daemon.home / "uploads", hashlib.sha256(b"whole").hexdigest()
    head = b"PUT /api/v1/uploads/" + digest.encode() + b" HTTP/1.1\r\n" + HEAD + b"Content-Length: 5\r\n\r\nwho"
    with socket.create_connection(daemon.address, timeout=scaled(TIMEOUT_S)) as connection:
        connection.sendall(head.replace(TOKEN, daemon.token.encode()))
        wait_until(lambda: bool(list(uploads.glob(".upload-*"))))
    wait_until(lambda: not list(uploads.glob(".upload-*")))
    assert not (uploads / digest).exists()


def test_upload__is_limited_and_cleaned_up_after_a_crash(start_daemon: StartDaemon, tmp_path: Path) -> None:
    config = "uploads: {max_gib: 0.001}\n"
    daemon = start_daemon(tmp_path / "home", config)
    uploads = daemon.home / "uploads"
    body = os.urandom(2 * 2**20)
    response = put_upload(daemon, hashlib.sha256(body).hexdigest(), body)
    assert response.status_code == 413
    assert "uploads.max_gib" in response.json()["error"]["fix"]
    head = b"PUT /api/v1/uploads/" + ZEROS + b" HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    assert statuses(send(daemon, head, *[b"80000\r\n" + b" " * 0x80000 + b"\r\n"] * 4)) in ([413], [])
    with socket.create_connection(daemon.address, timeout=scaled(TIMEOUT_S)) as connection:
        connection.sendall(head.replace(TOKEN, daemon.token.encode()) + b"3\r\nabc\r\n")
        wait_until(lambda: bool(list(uploads.glob(".upload-*"))))
        daemon.process.kill()
        daemon.process.wait(TIMEOUT_S)
    (daemon.home / "controller.json").unlink()
    restarted = start_daemon(daemon.home, config)
    try:
        assert list(uploads.iterdir()) == []
    finally:
        restarted.stop()


def test_log_followers__release_their_connections(daemon: Daemon) -> None:
    """A client that follows a log and leaves keeps no file descriptor of the daemon open."""
    descriptors = f"/proc/{daemon.process.pid}/fd"
    before = len(os.listdir(descriptors))
    head = (b"GET /api/v1/controller/logs?follow=1 HTTP/1.1\r\n" + HEAD + b"\r\n").replace(TOKEN, daemon.token.encode())
    connections = [socket.create_connection(daemon.address, timeout=scaled(TIMEOUT_S)) for _ in range(20)]
    for connection in connections:
        connection.sendall(head)
    for connection in connections:
        assert connection.recv(1)
        connection.close()
    wait_until(lambda: len(os.listdir(descriptors)) <= before + 2)


@pytest.mark.parametrize("name", ["websocket without a token", "websocket for another host", "two hosts", "no host"])
def test_rejected_request__gets_a_status(daemon: Daemon, name: str) -> None:
    assert statuses(send(daemon, *HOSTILE[name]))[0] in (400, 401, 403, 421)
