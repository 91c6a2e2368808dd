"""What the channel does about a peer that behaves badly; what it does about a good one is tested with whole agents."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import struct
import threading
from typing import Any

import pytest

from perdure.agent import channel
from perdure.agent.channel import Backoff, Channel
from perdure.agent.controller import Controller
from perdure.agent.report import Outbox, Report

WELCOME = {
    "type": "welcome", "log_offset": 0, "checkpoint_seq": 0, "beat_s": 0.1,
    "directive": {"want": "run", "node_ips": ["10.0.0.1"], "deadline": None, "reason": ""},
}  # fmt: skip


def accept(listener: socket.socket) -> socket.socket:
    """Take one connection as far as the upgraded WebSocket."""
    connection, _ = listener.accept()
    head = b""
    while b"\r\n\r\n" not in head:
        head += connection.recv(4096)
    key = next(line.split(b": ")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
    accepted = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    connection.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accepted + b"\r\n\r\n"
    )
    return connection


def send(connection: socket.socket, value: Any) -> None:
    payload = json.dumps(value).encode()
    connection.sendall(b"\x81\x7e" + struct.pack("!H", len(payload)) + payload)


@pytest.fixture
def listener() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        yield listener


@pytest.fixture
def start(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(channel, "SILENT_MIN_S", 0.3)
    monkeypatch.setattr(channel, "RETRY_CAP_S", 0.2)
    channels = []
    heard: list[Any] = []
    directed = threading.Event()

    def direct(raw: dict[str, Any]) -> None:
        heard.append(raw["want"])
        directed.set()

    def start() -> tuple[list[Any], threading.Event]:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        outbox = Outbox(Report(), notices=[], sizes=lambda: {"logs": {"size": 0}})
        made = Channel(
            Controller(endpoint, "t", 0), outbox, (), direct=direct, written_off=lambda: None, log=lambda _: None
        )
        channels.append(made)
        made.start()
        return heard, directed

    yield start
    for made in channels:
        made.close(timeout_s=0)


def test_a_connection_that_only_looks_alive_is_given_up(listener: socket.socket, start: Any) -> None:
    start()
    with accept(listener) as silent:
        send(silent, WELCOME)  # and never a word again: pings stay unanswered
        with accept(listener) as second:
            assert second.recv(1)


@pytest.mark.parametrize(
    "nonsense", [["a", "list"], {"type": "directive"}, {"type": "directive", "directive": {"want": "dance"}}, 7]
)
def test_nonsense_ends_the_connection_not_the_agent(listener: socket.socket, start: Any, nonsense: Any) -> None:
    start()
    with accept(listener) as first:
        send(first, WELCOME)
        send(first, nonsense)
        with accept(listener) as second:
            assert second.recv(1)


def test_who_does_not_say_welcome_is_called_again(listener: socket.socket, start: Any) -> None:
    heard, directed = start()
    with accept(listener) as first:
        send(first, {"type": "directive", "directive": WELCOME["directive"]})
        with accept(listener) as second:
            send(second, WELCOME)
            assert directed.wait(20)
            assert heard == ["run"]


def test_waits_double_up_to_their_cap() -> None:
    backoff = Backoff()
    waits = [backoff.wait_s() for _ in range(8)]
    for wait_s, whole_s in zip(waits, [0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5], strict=True):
        assert whole_s / 2 <= wait_s <= whole_s
    backoff.reset()
    assert backoff.wait_s() <= 0.2


def test_where_nobody_answers_nodes_spread_their_calls() -> None:
    """The first wait is any part of the time that all take together; those after it are as long as that."""
    waits = []
    for _ in range(200):
        backoff = Backoff()
        backoff.crowd_s = 13.0
        assert backoff.wait_s() <= 0.2, "that its own connection broke says nothing of the others"
        waits.append(backoff.wait_s(unanswered=True))
        rest = [backoff.wait_s(unanswered=True) for _ in range(9)]
        assert 6.5 <= rest[-1] <= 13.0
    assert min(waits) < 2.0 < 11.0 < max(waits) <= 13.0


def test_few_nodes_spread_nothing() -> None:
    backoff = Backoff()
    assert [backoff.wait_s(unanswered=True) <= most_s for most_s in (0.2, 0.4, 0.8)] == [True] * 3
