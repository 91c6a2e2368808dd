"""Clients that break the protocol itself, on raw sockets: no hang, no traceback, and the daemon answers afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
import requests

from perdure.controller.callers import HEAD_S

PATIENCE_S = 30.0
TOKEN = b"@TOKEN@"
HEAD = b"Host: 127.0.0.1\r\nAuthorization: Bearer " + TOKEN + b"\r\n"
JSON = HEAD + b"Content-Type: application/json\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
UPGRADE += b"MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
ZEROS = b"0" * 64


def say(daemon: Any, *parts: bytes, finish: bool = False, patience_s: float = PATIENCE_S) -> bytes:
    """Send, and read until the daemon closes or falls silent. `finish`: say before that nothing more comes."""
    with socket.create_connection(daemon.address, timeout=PATIENCE_S) as link:
        try:
            for part in parts:
                link.sendall(part.replace(TOKEN, daemon.token.encode()))
            if finish:
                link.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # refused before it was all said
        heard = b""
        link.settimeout(patience_s)
        try:
            while data := link.recv(65536):
                heard += data
                link.settimeout(min(patience_s, 0.3))
        except (ConnectionResetError, TimeoutError):
            pass
    return heard


def statuses(heard: bytes) -> list[int]:
    return [int(line.split()[1]) for line in heard.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]


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
def _unharmed(daemon: Any) -> Any:
    yield
    assert requests.get(f"{daemon.url}/healthz", timeout=PATIENCE_S).json() == {"status": "ok"}
    assert daemon.complaints() == []
    assert not list((daemon.home / "uploads").glob(".upload-*")), "half an upload is left"


@pytest.mark.parametrize("name", HOSTILE)
def test_nonsense(daemon: Any, name: str) -> None:
    for finish in (False, True):
        heard = say(daemon, *HOSTILE[name], finish=finish, patience_s=0.5)
        assert all(200 <= status < 500 for status in statuses(heard)), heard[:500]
        assert b"Traceback" not in heard
        assert daemon.token.encode() not in heard


def test_it_is_cut_off_in_the_middle(daemon: Any) -> None:
    """Reset, not closed, in the head, in the body and in the answer."""
    whole = b"POST /api/v1/plan HTTP/1.1\r\n" + JSON + b"Content-Length: 14\r\n\r\n" + b'{"tasks": [{}]}'
    whole = whole.replace(TOKEN, daemon.token.encode())
    for end in range(0, len(whole) + 1, 7):
        with socket.create_connection(daemon.address, timeout=PATIENCE_S) as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link.sendall(whole[:end])


def test_a_body_in_single_bytes_is_a_body(daemon: Any) -> None:
    body = json.dumps({"tasks": []}).encode()
    head = b"POST /api/v1/plan HTTP/1.1\r\n" + JSON + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = [b"1\r\n%c\r\n" % byte for byte in body]
    heard = say(daemon, head, *chunks, b"0\r\n\r\n")
    assert statuses(heard) == [400]
    assert b"the job has no task" in heard


def test_those_who_wait_do_not_keep_others_waiting(daemon: Any) -> None:
    """Two hundred clients that have begun to speak and do not go on."""
    idle = [socket.create_connection(daemon.address, timeout=PATIENCE_S) for _ in range(200)]
    try:
        for index, link in enumerate(idle):
            link.sendall((b"GET /healthz HTTP/1.1\r\nHost: 1", b"PUT /api/v1/uploads/0 HTTP/1.1\r\n")[index % 2])
        began = time.monotonic()
        assert requests.get(f"{daemon.url}/healthz", timeout=PATIENCE_S).ok
        assert time.monotonic() - began < PATIENCE_S / 2
    finally:
        for link in idle:
            link.close()


SLOW_HEADS: dict[str, bytes] = {
    "nothing": b"",
    "a first head": b"GET /healthz HTTP/1.1\r\nHost: 1",
    "a second head": b"GET /healthz HTTP/1.1\r\n" + HEAD + b"\r\nGET /healthz HTTP/1.1\r\nHost: 1",
    "a body that nobody reads": b"POST /nowhere HTTP/1.1\r\n" + HEAD + b"Content-Length: 1000000\r\n\r\n1",
    "a body without a token": b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n1",
}


def test_whoever_speaks_by_single_letters_is_hung_up_on(daemon: Any) -> None:
    """Each head has its time, and so has what nobody asked for."""
    links = {name: socket.create_connection(daemon.address, timeout=PATIENCE_S) for name in SLOW_HEADS}
    for name, link in links.items():
        link.sendall(SLOW_HEADS[name].replace(TOKEN, daemon.token.encode()))
    began, left = time.monotonic(), dict(links)
    while left:
        assert time.monotonic() - began < HEAD_S + PATIENCE_S, f"still open: {set(left)}"
        Event().wait(1.0)
        for name, link in list(left.items()):
            try:
                link.sendall(b"0" if name != "nothing" else b"")
                link.settimeout(0.05)
                while link.recv(65536):
                    pass
                del left[name]
            except TimeoutError:
                continue
            except OSError:
                del left[name]
    assert time.monotonic() - began > HEAD_S / 2


def test_nothing_of_a_strangers_body_is_read(daemon: Any) -> None:
    """It is refused by its head, before it has said any of what it wants to say."""
    for path in (b"/api/v1/jobs", b"/api/v1/plan", b"/api/v1/uploads/" + ZEROS):
        method = b"PUT " if b"uploads" in path else b"POST "
        head = method + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n"
        assert statuses(say(daemon, head)) == [401]


def test_a_body_without_end_is_refused_while_it_comes(daemon: Any) -> None:
    head = b"POST /api/v1/plan HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n"
    block = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    assert statuses(say(daemon, head, *[block] * 40)) in ([413], [])


def put(daemon: Any, digest: str, body: bytes) -> requests.Response:
    headers = {"Authorization": f"Bearer {daemon.token}"}
    return requests.put(f"{daemon.url}/api/v1/uploads/{digest}", data=body, headers=headers, timeout=PATIENCE_S)


def test_an_upload_must_be_what_its_name_says(daemon: Any) -> None:
    answer = put(daemon, "0" * 64, b"something else")
    assert answer.status_code == 400
    assert "not those of this digest" in answer.json()["error"]["message"]
    assert not (daemon.home / "uploads" / ("0" * 64)).exists()


def test_the_same_upload_from_many_at_once(daemon: Any) -> None:
    body = os.urandom(3_000_000)
    digest = hashlib.sha256(body).hexdigest()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: put(daemon, digest, body).status_code, range(16)))
    assert set(answers) <= {200, 201}
    assert (daemon.home / "uploads" / digest).read_bytes() == body


def until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at
        Event().wait(0.02)


def test_an_aborted_upload_leaves_nothing(daemon: Any) -> None:
    uploads, digest = daemon.home / "uploads", hashlib.sha256(b"whole").hexdigest()
    head = b"PUT /api/v1/uploads/" + digest.encode() + b" HTTP/1.1\r\n" + HEAD + b"Content-Length: 5\r\n\r\nwho"
    with socket.create_connection(daemon.address, timeout=PATIENCE_S) as link:
        link.sendall(head.replace(TOKEN, daemon.token.encode()))
        until(lambda: bool(list(uploads.glob(".upload-*"))))
    until(lambda: not list(uploads.glob(".upload-*")))
    assert not (uploads / digest).exists()


def test_a_daemon_killed_in_the_middle_of_an_upload_clears_up_and_one_too_large_is_refused(
    start_daemon: Any, tmp_path: Any
) -> None:
    config = "uploads: {max_gib: 0.001}\n"
    one = start_daemon(tmp_path / "home", config)
    uploads = one.home / "uploads"
    body = os.urandom(2 * 2**20)
    answer = put(one, hashlib.sha256(body).hexdigest(), body)
    assert answer.status_code == 413
    assert "uploads.max_gib" in answer.json()["error"]["fix"]
    head = b"PUT /api/v1/uploads/" + ZEROS + b" HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    assert statuses(say(one, head, *[b"80000\r\n" + b" " * 0x80000 + b"\r\n"] * 4)) in ([413], [])
    with socket.create_connection(one.address, timeout=PATIENCE_S) as link:
        link.sendall(head.replace(TOKEN, one.token.encode()) + b"3\r\nabc\r\n")
        until(lambda: bool(list(uploads.glob(".upload-*"))))
        one.process.kill()
        one.process.wait(PATIENCE_S)
    (one.home / "controller.json").unlink()
    again = start_daemon(one.home, config)
    try:
        assert list(uploads.iterdir()) == []
    finally:
        again.stop()


def test_a_follower_that_goes_away_is_let_go(daemon: Any) -> None:
    """Log followers hold nothing once they are gone."""
    descriptors = f"/proc/{daemon.process.pid}/fd"
    before = len(os.listdir(descriptors))
    head = (b"GET /api/v1/controller/logs?follow=1 HTTP/1.1\r\n" + HEAD + b"\r\n").replace(TOKEN, daemon.token.encode())
    links = [socket.create_connection(daemon.address, timeout=PATIENCE_S) for _ in range(20)]
    for link in links:
        link.sendall(head)
    for link in links:
        assert link.recv(1)
        link.close()
    until(lambda: len(os.listdir(descriptors)) <= before + 2)


@pytest.mark.parametrize("name", ["websocket without a token", "websocket for another host", "two hosts", "no host"])
def test_what_is_turned_away_hears_so(daemon: Any, name: str) -> None:
    assert statuses(say(daemon, *HOSTILE[name]))[0] in (400, 401, 403, 421)
