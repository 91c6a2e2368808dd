"""Probes of a real HTTP server, and what is reported of them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from perdure.agent.workload.readiness import ProbeSettings, ReadinessStream, probe
from support.helpers.timing import wait_until

LOOPBACK = ("127.0.0.1",)


class Program(ThreadingHTTPServer):
    """A program whose answer can be changed. `requests`: what it has received."""

    daemon_threads = True
    status, body = 200, b"ok"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, str, str | None, bytes]] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    server: Program

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.command, self.path, self.headers.get("X-Key"), body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    do_GET = do_POST = _answer

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def program() -> Iterator[Program]:
    server = Program()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def settings(port: int, **more: Any) -> ProbeSettings:
    return ProbeSettings.parse({"path": "/up", "port": port, "timeout_s": 5.0, "interval_s": 0.05, **more})


def test_probe__is_ready_with_200(program: Program) -> None:
    assert probe(settings(program.port), LOOPBACK).ready
    assert program.requests == [("GET", "/up", None, b"")]


def test_probe__says_what_was_answered(program: Program) -> None:
    program.status, program.body = 503, b"loading\nthe model"
    result = probe(settings(program.port), LOOPBACK)
    assert (result.ready, result.status) == (False, 503)
    assert "503 Service Unavailable: loading the model" in result.message


@pytest.mark.parametrize("data", [{"a": 1}, '{"a": 1}'])
def test_probe__posts_data_with_headers(program: Program, data: object) -> None:
    assert probe(settings(program.port, post_data=data, headers={"X-Key": "k"}), LOOPBACK).ready
    ((method, _, key, body),) = program.requests
    assert (method, key, json.loads(body)) == ("POST", "k", {"a": 1})


def test_probe__tries_every_address(program: Program) -> None:
    assert probe(settings(program.port), ("127.77.9.9", *LOOPBACK)).ready


def test_probe__says_that_nothing_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    assert probe(settings(port), LOOPBACK).message == f"nothing listens at port {port}"


class _Socket:
    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []

    def send_text(self, text: str) -> None:
        self.frames.append(json.loads(text))


def test_readiness_stream__reports_changes_and_repeats_the_newest(
    program: Program, request: pytest.FixtureRequest
) -> None:
    running = threading.Event()
    stream = ReadinessStream(settings(program.port), "", running.is_set, lambda _line: None)
    request.addfinalizer(stream.stop)
    first, second = _Socket(), _Socket()
    stream.attach(first, {})  # type: ignore[arg-type]
    stream.start()
    assert first.frames == []  # `run` has not started
    program.status = 500
    running.set()
    wait_until(lambda: first.frames, "the first report", 10)
    assert (first.frames[0]["ready"], first.frames[0]["status"]) == (False, 500)
    program.status = 200
    wait_until(lambda: first.frames[-1]["ready"], "the change", 10)
    num_changes, num_probes = len(first.frames), len(program.requests)
    wait_until(lambda: len(program.requests) > num_probes + 2, "more probes", 10)
    assert len(first.frames) == num_changes == 2
    stream.attach(second, {})  # type: ignore[arg-type]
    assert [frame["ready"] for frame in second.frames] == [True]
