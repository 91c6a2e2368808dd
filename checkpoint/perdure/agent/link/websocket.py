"""A minimal WebSocket client (RFC 6455): one connection, text and binary messages, ping and pong, plain or TLS.

One thread receives; any thread may send. The socket never blocks: both sides wait with `poll`, and hold the socket only
for single system calls (an OpenSSL connection may not be read and written at the same moment).
"""

from __future__ import annotations

import base64
import hashlib
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from perdure.agent.link import tls

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
MAX_MESSAGE_BYTES = 1024 * 1024
MAX_HEAD_BYTES = 64 * 1024
SEND_TIMEOUT_S = 15.0
_ACCEPT_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_RETRY = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Disconnected(Exception):
    """The connection has ended, or the peer broke the protocol."""


class UpgradeRefused(Exception):
    """The server answered the upgrade with another status than 101."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the server answered the WebSocket upgrade with {status}")
        self.status = status


class Frame(NamedTuple):
    final: bool
    opcode: int
    payload: bytes


def mask(payload: bytes, key: bytes) -> bytes:
    """XOR with the repeated 4-byte key, as one big integer: bytes in a Python loop would be 300 times slower."""
    size = len(payload)
    repeated = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(repeated, "little")).to_bytes(size, "little")


def encode(opcode: int, payload: bytes) -> bytes:
    """One final, masked frame, as a client must send it."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, size)
    key = _random_key()
    return head + key + mask(payload, key)


_keys = bytearray()


def _random_key() -> bytes:
    """Four bytes that nobody can guess. Many are made at once: a system call would take longer than all the rest."""
    while True:
        try:
            key = _keys.pop(), _keys.pop(), _keys.pop(), _keys.pop()
        except IndexError:  # another thread may have taken some of the last ones
            _keys.extend(os.urandom(4096))
        else:
            return bytes(key)


def decode(buffer: bytearray) -> Frame | None:
    """Remove the first frame from `buffer`; None while it is incomplete. Raises Disconnected if it is malformed."""
    if len(buffer) < 2:
        return None
    first, second = buffer[0], buffer[1]
    if first & 0x70 or second & 0x80:
        raise Disconnected("the server sent a frame with reserved bits or a mask")
    size, start = second & 0x7F, 2
    if size >= 126:
        start = 4 if size == 126 else 10
        if len(buffer) < start:
            return None
        size = int.from_bytes(buffer[2:start], "big")
    if size > MAX_MESSAGE_BYTES:
        raise Disconnected(f"the server sent a frame of {size} bytes")
    if len(buffer) < start + size:
        return None
    payload = bytes(buffer[start : start + size])
    del buffer[: start + size]
    return Frame(bool(first & 0x80), first & 0x0F, payload)


class WebSocket:
    """An open connection. `last_sent` and `last_received` are `time.monotonic()` seconds."""

    def __init__(self, sock: socket.socket, received: bytes = b"", *, send_timeout_s: float = SEND_TIMEOUT_S) -> None:
        """`send_timeout_s`: how long the server may accept nothing while a message is being sent."""
        sock.setblocking(False)
        self._sock = sock
        self._send_timeout_s = send_timeout_s
        self._buffer = bytearray(received)
        self._message = bytearray()
        self._message_opcode = CONTINUATION
        self._sending = threading.Lock()
        self._socket_call = threading.Lock()
        self.last_sent = self.last_received = time.monotonic()

    @classmethod
    def connect(
        cls,
        url: str,
        headers: Mapping[str, str],
        *,
        fingerprint: str | None = None,
        timeout_s: float = 10.0,
        send_timeout_s: float = SEND_TIMEOUT_S,
    ) -> WebSocket:
        """Open ws://, wss:// (or http://, https://) `url`. Raises UpgradeRefused, Disconnected or OSError.

        `fingerprint`: of the one certificate to trust, if it is TLS.
        """
        parts = urlsplit(url)
        secure = parts.scheme in ("wss", "https")
        host, port = parts.hostname or "", parts.port or (443 if secure else 80)
        sock = socket.create_connection((host, port), timeout=timeout_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if secure:
                sock = tls.wrap_socket(sock, host, fingerprint)
            received = _upgrade(sock, parts.netloc, parts.path or "/", headers, timeout_s=timeout_s)
            return cls(sock, received, send_timeout_s=send_timeout_s)
        except BaseException:
            sock.close()
            raise

    def send_text(self, text: str) -> None:
        """Raises Disconnected."""
        self._send(TEXT, text.encode())

    def send_binary(self, payload: bytes) -> None:
        """Raises Disconnected."""
        self._send(BINARY, payload)

    def ping(self) -> None:
        """Send a ping; the pong updates `last_received`. Raises Disconnected."""
        self._send(PING, b"")

    def ping_if_idle(self, after_s: float) -> None:
        """Send a ping if nothing was sent for `after_s`. Does not wait for another thread that is sending now."""
        if time.monotonic() - self.last_sent >= after_s and not self._sending.locked():
            self.ping()

    def expect_acknowledgements(self, within_s: float) -> None:
        """Let the system break the connection if the peer's system acknowledges nothing for this long.

        A peer that is alive but does not read is no reason to break it.
        """
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(within_s / 2)))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(within_s * 1000))

    def fileno(self) -> int:
        """The descriptor of the connection, for `poll`."""
        return self._sock.fileno()

    def receive(self, timeout_s: float, wake: int | None = None) -> str | bytes | None:
        """The next message; None after `timeout_s`, or once the descriptor `wake` is readable. Raises Disconnected."""
        deadline = time.monotonic() + timeout_s
        while True:
            frame = decode(self._buffer)
            if frame is not None:
                self.last_received = time.monotonic()  # only whole frames prove liveness
                message = self._handle_frame(frame)
                if message is not None:
                    return message
            elif not self._receive_bytes(deadline - time.monotonic(), wake):
                return None
            if time.monotonic() >= deadline:
                return None  # also in the middle of a message, and under a flood of pings

    def take_frames(self) -> list[Frame]:
        """The frames that have arrived, without waiting. Answer pings and a close yourself. Raises Disconnected."""
        while True:
            try:
                with self._socket_call:
                    data = self._sock.recv(1 << 16)
            except _RETRY:
                break
            except (OSError, ValueError) as error:
                raise Disconnected(f"reading: {error}") from None
            if not data:
                raise Disconnected("the server closed the connection")
            self._buffer += data
            if not _buffered_by_tls(self._sock):
                break
        frames = []
        while (frame := decode(self._buffer)) is not None:
            frames.append(frame)
        if frames:
            self.last_received = time.monotonic()
        return frames

    def send_some(self, frames: bytes) -> int:
        """How many bytes of `frames`, which `encode` has made, were sent without waiting. Raises Disconnected."""
        try:
            with self._socket_call:
                sent = self._sock.send(frames)
        except _RETRY:
            return 0
        except (OSError, ValueError) as error:
            raise Disconnected(f"sending: {error}") from None
        self.last_sent = time.monotonic()
        return sent

    def abort(self) -> None:
        """Cut the connection, from any thread: `send_*` and `receive` raise Disconnected."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Send a close frame if the socket is free, and close it. Never raises."""
        if self._sending.acquire(timeout=1.0):  # otherwise another thread hangs in sending
            with suppress(OSError):
                self._sock.settimeout(1.0)
                self._sock.sendall(encode(CLOSE, struct.pack("!H", 1000)))
            self._sending.release()
        self.abort()
        self._sock.close()

    def _handle_frame(self, frame: Frame) -> str | bytes | None:
        """Handle one frame; returns the message that it completes, if any."""
        if frame.opcode == PING:
            self._send(PONG, frame.payload)
            return None
        if frame.opcode == PONG:
            return None
        if frame.opcode == CLOSE:
            raise Disconnected(f"the server closed: {_close_reason(frame.payload)}")
        if (frame.opcode == CONTINUATION) == (self._message_opcode == CONTINUATION):
            raise Disconnected("the server sent a fragment out of order")
        if frame.opcode != CONTINUATION:
            self._message_opcode = frame.opcode
        self._message += frame.payload
        if len(self._message) > MAX_MESSAGE_BYTES:
            raise Disconnected("the server sent a message that is too long")
        if not frame.final:
            return None
        whole, opcode = bytes(self._message), self._message_opcode
        self._message, self._message_opcode = bytearray(), CONTINUATION
        try:
            return whole.decode() if opcode == TEXT else whole
        except UnicodeDecodeError:
            raise Disconnected("the server sent text that is not UTF-8") from None

    def _receive_bytes(self, timeout_s: float, wake: int | None) -> bool:
        """Wait for bytes and append them to the buffer. False on timeout, or when `wake` is readable."""
        if not _buffered_by_tls(self._sock):
            ready = _poll(self._sock, select.POLLIN, timeout_s, wake)
            if self._sock.fileno() not in ready:
                return False
        try:
            with self._socket_call:
                data = self._sock.recv(1 << 16)
        except _RETRY:
            return timeout_s > 0
        except OSError as error:
            raise Disconnected(f"reading: {error}") from None
        if not data:
            raise Disconnected("the server closed the connection")
        self._buffer += data
        return True

    def _send(self, opcode: int, payload: bytes) -> None:
        remaining = memoryview(encode(opcode, payload))
        with self._sending:
            deadline = time.monotonic() + self._send_timeout_s
            while remaining:
                try:
                    with self._socket_call:
                        remaining = remaining[self._sock.send(remaining) :]
                except ssl.SSLWantReadError:
                    _poll(self._sock, select.POLLIN, 1.0)
                except _RETRY:
                    _poll(self._sock, select.POLLOUT, 1.0)
                except (OSError, ValueError) as error:
                    raise Disconnected(f"sending: {error}") from None
                if remaining and time.monotonic() > deadline:
                    raise Disconnected(f"sending: the server took nothing for {self._send_timeout_s:.0f} s")
            self.last_sent = time.monotonic()


def _upgrade(sock: socket.socket, host: str, path: str, headers: Mapping[str, str], *, timeout_s: float) -> bytes:
    """Do the opening handshake within `timeout_s`; returns the bytes that followed the response's head."""
    deadline = time.monotonic() + timeout_s
    key = base64.b64encode(os.urandom(16))
    lines = [f"GET {path} HTTP/1.1", f"Host: {host}", "Upgrade: websocket", "Connection: Upgrade"]
    lines += [f"Sec-WebSocket-Key: {key.decode()}", "Sec-WebSocket-Version: 13"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    sock.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
    received = b""
    while b"\r\n\r\n" not in received:
        data = sock.recv(4096)
        if not data or len(received) > MAX_HEAD_BYTES or time.monotonic() > deadline:
            raise Disconnected("the server did not answer the WebSocket upgrade")
        received += data
    head, _, rest = received.partition(b"\r\n\r\n")
    status_line, *fields = head.decode("latin-1").split("\r\n")
    words = status_line.split(None, 2)
    if len(words) < 2 or not words[1].isdigit():
        raise Disconnected(f"the server does not speak HTTP: it answered {status_line[:60]!r}")
    if words[1] != "101":
        raise UpgradeRefused(int(words[1]))
    response = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    expected = base64.b64encode(hashlib.sha1(key + _ACCEPT_GUID).digest()).decode()  # noqa: S324 (RFC 6455 says so)
    if response.get("sec-websocket-accept") != expected:
        raise Disconnected("the server answered the WebSocket upgrade with a wrong key")
    return rest


def _poll(sock: socket.socket, events: int, timeout_s: float, wake: int | None = None) -> set[int]:
    """The descriptors that are ready. Uses `poll`, since `select` fails above descriptor 1023."""
    poll = select.poll()
    try:
        poll.register(sock, events)
    except (ValueError, OSError):
        raise Disconnected("the connection was closed here") from None
    if wake is not None:
        poll.register(wake, select.POLLIN)
    return {fd for fd, _ in poll.poll(max(0.0, timeout_s) * 1000)}


def _buffered_by_tls(sock: socket.socket) -> bool:
    return isinstance(sock, ssl.SSLSocket) and sock.pending() > 0


def _close_reason(payload: bytes) -> str:
    code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else "no reason given"
    return f"{code} {payload[2:].decode(errors='replace')}".strip()
