"""Streams of a service's callers: copied by one thread, in both directions, whoever is slow."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from perdure.agent.link.websocket import BINARY, CLOSE, PING, PONG, TEXT, Disconnected, WebSocket, mask
from perdure.agent.tunnel.port_relay import PortRelay
from perdure.agent.tunnel.session import Session
from support.helpers.timing import scaled

LARGE = 4 * 2**20


@dataclass
class Stream:
    """One stream in the relay. `controller` and `program` are its two ends."""

    relay: PortRelay
    controller: socket.socket = field(init=False)
    program: socket.socket = field(init=False)
    session: Session = field(init=False)
    result: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.controller, node = socket.socketpair()
        self.program, self.link = socket.socketpair()
        for one in (self.controller, self.program):
            one.settimeout(scaled(20))
        self.link.setblocking(False)
        self.session = Session(WebSocket(node))
        self.session.at_end(self.link.close)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.relay.run(self.session, self.link)
            self.result.append("over")
        except Disconnected as error:
            self.result.append(str(error))

    def send(self, opcode: int, payload: bytes = b"") -> None:
        """As the controller: a frame without a mask."""
        size = len(payload)
        length = bytes([size]) if size < 126 else struct.pack("!BQ", 127, size)
        self.controller.sendall(bytes([0x80 | opcode]) + length + payload)

    def receive(self) -> tuple[int, bytes]:
        """The next frame of the node."""
        first, second = self._exactly(2)
        size = second & 0x7F
        if size == 126:
            size = int.from_bytes(self._exactly(2), "big")
        elif size == 127:
            size = int.from_bytes(self._exactly(8), "big")
        key = self._exactly(4)
        return first & 0x0F, mask(self._exactly(size), key)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.controller.recv(size - len(data))
            assert piece, "the node has closed the stream"
            data += piece
        return data

    def until_over(self) -> str:
        self.thread.join(scaled(20))
        return self.result[0]

    def close(self) -> None:
        for one in (self.controller, self.program):
            one.close()
        self.thread.join(scaled(20))
        self.session.close()


@pytest.fixture
def relay() -> PortRelay:
    return PortRelay()


@pytest.fixture
def stream(relay: PortRelay) -> Iterator[Stream]:
    one = Stream(relay)
    yield one
    one.close()


def test_relay__copies_both_directions(stream: Stream) -> None:
    stream.send(BINARY, b"GET /")
    assert stream.program.recv(100) == b"GET /"
    stream.program.sendall(b"200 OK")
    assert stream.receive() == (BINARY, b"200 OK")
    assert stream.session.used_at > 0
    stream.program.close()
    assert stream.until_over() == "over"


def test_relay__copies_what_came_before_the_program_has_closed(stream: Stream) -> None:
    stream.program.sendall(b"x" * 100_000)
    stream.program.close()
    received = b""
    while len(received) < 100_000:
        received += stream.receive()[1]
    assert stream.until_over() == "over"


def test_relay__stops_a_side_whose_other_side_does_not_read(relay: PortRelay, stream: Stream) -> None:
    """What a slow reader has not read waits in its sender; others go on; in the end, nothing is lost."""

    def upload() -> None:
        for _ in range(LARGE // 2**16):
            stream.send(BINARY, b"u" * 2**16)

    def answer() -> None:
        stream.program.sendall(b"d" * LARGE)

    senders = [threading.Thread(target=one, daemon=True) for one in (upload, answer)]
    for one in senders:
        one.start()
    for one in senders:
        one.join(0.5)
    assert all(one.is_alive() for one in senders), "nobody has read yet"
    other = Stream(relay)
    other.send(BINARY, b"hello")
    assert other.program.recv(100) == b"hello"
    other.program.sendall(b"here")
    assert other.receive() == (BINARY, b"here")
    other.close()
    received = sum(len(stream.receive()[1]) for _ in iter(senders[1].is_alive, False))
    while received < LARGE:
        received += len(stream.receive()[1])
    uploaded = 0
    while uploaded < LARGE:
        uploaded += len(stream.program.recv(2**16))
    for one in senders:
        one.join(scaled(20))
    assert (received, uploaded) == (LARGE, LARGE)


def test_relay__ends_the_input_of_the_program(stream: Stream) -> None:
    stream.send(BINARY, b"all")
    stream.send(TEXT, json.dumps({"type": "eof"}).encode())
    assert stream.program.recv(100) == b"all"
    assert stream.program.recv(100) == b""
    stream.program.sendall(b"answer")
    assert stream.receive() == (BINARY, b"answer")


def test_relay__answers_pings(stream: Stream) -> None:
    stream.send(PING, b"p")
    assert stream.receive() == (PONG, b"p")


@pytest.mark.parametrize("how", ["close", "frame", "text", "reserved"])
def test_relay__ends_with_the_controller(stream: Stream, how: str) -> None:
    if how == "close":
        stream.controller.close()
    else:
        what = {"frame": (CLOSE, b""), "text": (TEXT, b"no JSON"), "reserved": (0x70 | BINARY, b"")}[how]
        stream.send(*what)
    assert stream.until_over() != "over"


def test_relay__notices_the_end_of_the_controller_while_the_program_does_not_read(stream: Stream) -> None:
    stream.controller.settimeout(0.2)
    with suppress(TimeoutError):
        while True:
            stream.send(BINARY, b"u" * 2**16)
    stream.controller.close()
    assert stream.until_over() == "the controller closed the stream"


def test_relay__ends_when_the_session_must(stream: Stream) -> None:
    stream.session.end("the job has ended")
    assert stream.until_over() == "over"


def test_relay__goes_on_when_the_program_wants_no_more_input(stream: Stream) -> None:
    stream.program.shutdown(socket.SHUT_RD)
    for _ in range(3):
        stream.send(BINARY, b"late")
    stream.program.sendall(b"answer")
    assert stream.receive() == (BINARY, b"answer")
