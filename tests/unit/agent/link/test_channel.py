"""The channel and a peer that behaves badly. The integration tests cover peers that behave well."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perdure.agent.link import channel
from perdure.agent.link.channel import Backoff, Channel
from perdure.agent.link.client import ControllerClient
from perdure.agent.link.outbox import Outbox, Report
from support.helpers.timing import scaled

Start = Callable[[], tuple[list[Any], threading.Event]]  # → (targets of the directives, set when one arrives)


WELCOME = {
    "type": "welcome", "log_offset": 0, "checkpoint_seq": 0, "heartbeat_interval_s": 0.1,
    "directive": {"target": "run", "node_ips": ["10.0.0.1"], "deadline": None, "reason": ""},
}  # fmt: skip


def accept(listener: socket.socket) -> socket.socket:
    """Accept one connection and upgrade it to a WebSocket."""
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
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        yield listener


@pytest.fixture
def start(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(channel, "MIN_SILENCE_S", 0.3)
    monkeypatch.setattr(channel, "RETRY_MAX_S", 0.2)
    channels = []
    targets: list[Any] = []
    directed = threading.Event()

    def direct(raw: dict[str, Any]) -> None:
        targets.append(raw["target"])
        directed.set()

    def start() -> tuple[list[Any], threading.Event]:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        outbox = Outbox(Report(), notices=[], sizes=lambda: {"logs": {"size": 0}})
        made = Channel(
            ControllerClient(endpoint, "t", 0),
            outbox,
            (),
            on_directive=direct,
            on_revoked=lambda: None,
            log=lambda _: None,
        )
        channels.append(made)
        made.start()
        return targets, directed

    yield start
    for made in channels:
        made.close(timeout_s=0)


def test_channel__replaces_a_connection_that_only_looks_alive(listener: socket.socket, start: Start) -> None:
    start()
    with accept(listener) as silent:
        send(silent, WELCOME)  # and nothing after it: pings stay unanswered
        with accept(listener) as second:
            assert second.recv(1)


@pytest.mark.parametrize(
    "nonsense", [["a", "list"], {"type": "directive"}, {"type": "directive", "directive": {"target": "dance"}}, 7]
)
def test_channel__survives_malformed_messages(listener: socket.socket, start: Start, nonsense: object) -> None:
    start()
    with accept(listener) as first:
        send(first, WELCOME)
        send(first, nonsense)
        with accept(listener) as second:
            assert second.recv(1)


def test_channel__reconnects_when_the_first_frame_is_no_welcome(listener: socket.socket, start: Start) -> None:
    targets, directed = start()
    with accept(listener) as first:
        send(first, {"type": "directive", "directive": WELCOME["directive"]})
        with accept(listener) as second:
            send(second, WELCOME)
            assert directed.wait(scaled(20))
            assert targets == ["run"]


def test_backoff__doubles_up_to_its_maximum() -> None:
    backoff = Backoff()
    waits = [backoff.wait_s() for _ in range(8)]
    for wait_s, whole_s in zip(waits, [0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5], strict=True):
        assert whole_s / 2 <= wait_s <= whole_s
    backoff.reset()
    assert backoff.wait_s() <= 0.2


def test_backoff__spreads_reconnects_when_nobody_answers() -> None:
    """The first wait is a random part of the spread; the later ones are as long as the spread."""
    waits = []
    for _ in range(200):
        backoff = Backoff()
        backoff.reconnect_spread_s = 13.0
        assert backoff.wait_s() <= 0.2, "its own broken connection is no reason to spread"
        waits.append(backoff.wait_s(nobody_answered=True))
        rest = [backoff.wait_s(nobody_answered=True) for _ in range(9)]
        assert 6.5 <= rest[-1] <= 13.0
    assert min(waits) < 2.0 < 11.0 < max(waits) <= 13.0


def test_backoff__does_not_spread_without_a_spread_time() -> None:
    backoff = Backoff()
    assert [backoff.wait_s(nobody_answered=True) <= max_s for max_s in (0.2, 0.4, 0.8)] == [True] * 3
