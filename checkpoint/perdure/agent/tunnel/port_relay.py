"""Copies the bytes of the streams of a service's callers, all in one thread.

A replica answers thousands of requests a second. With two threads for each stream, as the sessions of users have them,
most of that time is spent on handing over the interpreter's lock. Nothing is buffered beyond one read in each
direction: a side that stops reading stops the other one (flow control by TCP).
"""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import suppress

from perdure.agent.link.stream_copy import PING_INTERVAL_S, READ_BYTES, parse_control
from perdure.agent.link.websocket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, Disconnected, Frame, encode
from perdure.agent.tunnel.session import Session

_IN, _OUT, _GONE = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP


class _Stream:
    """One stream. `to_link`, `to_controller`: what the program, and the controller, have not taken yet."""

    __slots__ = (
        *("ends_input", "error", "has_ended", "link", "link_fd", "link_mask", "over", "session"),
        *("to_controller", "to_link", "wake_fd", "ws", "ws_fd", "ws_mask"),
    )

    def __init__(self, session: Session, link: socket.socket) -> None:
        self.session, self.ws, self.link = session, session.ws, link
        self.ws_fd, self.link_fd, self.wake_fd = session.ws.fileno(), link.fileno(), session.wake
        # What is waited for. It can be written to at once: so the thread looks at what has arrived before.
        self.ws_mask, self.link_mask = _IN | select.EPOLLRDHUP, _IN | _OUT
        self.to_link, self.to_controller = bytearray(), bytearray()
        self.ends_input = False  # the caller sends no more
        self.has_ended = False  # the program sends no more
        self.over = threading.Event()
        self.error: str | None = None

    def wanted(self) -> tuple[int, int]:
        """What to wait for: nothing is read from one side while the other one has not taken what was read before.

        The end of the controller's connection is always noticed.
        """
        from_controller = select.EPOLLRDHUP | (0 if self.to_link else _IN) | (_OUT if self.to_controller else 0)
        from_link = (0 if self.to_controller or self.has_ended else _IN) | (_OUT if self.to_link else 0)
        return from_controller, from_link


class PortRelay:
    """The thread starts with the first stream."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoll: select.epoll | None = None
        self._streams: dict[int, _Stream] = {}  # by each of its descriptors
        self._checked_at = time.monotonic()

    def run(self, session: Session, link: socket.socket) -> None:
        """Copy between a session and a non-blocking connection until the program has closed it or the session must end.

        Raises Disconnected.
        """
        stream = _Stream(session, link)
        with self._lock:
            if self._epoll is None:
                self._epoll = select.epoll()
                threading.Thread(target=self._run, args=(self._epoll,), name="port relay", daemon=True).start()
            masks = (stream.wake_fd, _IN), (stream.ws_fd, stream.ws_mask), (stream.link_fd, stream.link_mask)
            for descriptor, _ in masks:
                self._streams[descriptor] = stream
            try:
                for descriptor, mask in masks:
                    self._epoll.register(descriptor, mask)
            except OSError as error:
                self._end(self._epoll, stream, str(error))
        stream.over.wait()
        if stream.error is not None:
            raise Disconnected(stream.error)

    def _run(self, epoll: select.epoll) -> None:
        while True:
            for descriptor, happened in epoll.poll(PING_INTERVAL_S / 3):
                with self._lock:  # all descriptors of a stream are registered, or none
                    self._handle(epoll, descriptor, happened)
            with self._lock:
                self._keep_alive(epoll)

    def _handle(self, epoll: select.epoll, descriptor: int, happened: int) -> None:
        stream = self._streams.get(descriptor)
        if stream is None:
            return  # it has ended a moment ago
        try:
            if self._serve(stream, descriptor, happened):
                self._end(epoll, stream, None)
            else:
                self._await(epoll, stream)
        except Disconnected as error:
            self._end(epoll, stream, str(error))
        except Exception as error:  # noqa: BLE001 - a bug must not end the others
            self._end(epoll, stream, repr(error))

    def _serve(self, stream: _Stream, descriptor: int, happened: int) -> bool:
        """Copy what can be copied now. Whether the stream is over. Raises Disconnected."""
        if descriptor == stream.wake_fd:
            return True
        is_of_link = descriptor == stream.link_fd
        if not is_of_link and stream.to_link and happened & _GONE:
            raise Disconnected("the controller closed the stream")
        if stream.to_controller:
            _send_on(stream)
        if stream.to_link:
            _write_on(stream)
        if not stream.to_link and (not is_of_link or happened & _OUT):
            for frame in stream.ws.take_frames():
                _take(stream, frame)
        if is_of_link and not stream.to_controller and not stream.has_ended:
            _read(stream)
        return stream.has_ended and not stream.to_controller

    def _await(self, epoll: select.epoll, stream: _Stream) -> None:
        """Wait for what the stream needs next."""
        ws_mask, link_mask = stream.wanted()
        if ws_mask != stream.ws_mask:
            epoll.modify(stream.ws_fd, ws_mask)
            stream.ws_mask = ws_mask
        if link_mask == stream.link_mask:
            return
        if not link_mask:  # a connection of which nothing is wanted would report its end for ever
            epoll.unregister(stream.link_fd)
        elif not stream.link_mask:
            epoll.register(stream.link_fd, link_mask)
        else:
            epoll.modify(stream.link_fd, link_mask)
        stream.link_mask = link_mask

    def _end(self, epoll: select.epoll, stream: _Stream, error: str | None) -> None:
        for descriptor in (stream.wake_fd, stream.ws_fd, stream.link_fd):
            if self._streams.get(descriptor) is stream:
                del self._streams[descriptor]
            with suppress(OSError, ValueError):
                epoll.unregister(descriptor)
        stream.error = error
        stream.over.set()  # its descriptors are closed from now on

    def _keep_alive(self, epoll: select.epoll) -> None:
        """Send a ping on each stream that has sent nothing for a while."""
        now = time.monotonic()
        if now - self._checked_at < PING_INTERVAL_S / 3:
            return
        self._checked_at = now
        for stream in set(self._streams.values()):
            if not stream.to_controller and now - stream.ws.last_sent >= PING_INTERVAL_S:
                try:
                    _send(stream, encode(PING, b""))
                    self._await(epoll, stream)
                except Disconnected as error:
                    self._end(epoll, stream, str(error))


def _take(stream: _Stream, frame: Frame) -> None:
    """Handle a frame of the controller. Raises Disconnected."""
    if frame.opcode in (BINARY, CONTINUATION):
        stream.session.touch()
        if stream.to_link:
            stream.to_link += frame.payload
        else:
            left = _write(stream, frame.payload)
            stream.to_link += left
    elif frame.opcode == TEXT:
        if parse_control(frame.payload.decode("utf-8", "replace")).get("type") == "eof":
            stream.ends_input = True
            _end_input(stream)
    elif frame.opcode == PING:
        _send(stream, encode(PONG, frame.payload))
    elif frame.opcode == CLOSE:
        raise Disconnected("the controller closed the stream")


def _read(stream: _Stream) -> None:
    """Pass on what the program has sent, or note that it sends no more. Raises Disconnected."""
    try:
        data = stream.link.recv(READ_BYTES)
    except (BlockingIOError, InterruptedError):
        return
    except OSError:
        data = b""
    if data:
        stream.session.touch()
        _send(stream, encode(BINARY, data))
    else:
        stream.has_ended = True


def _send(stream: _Stream, frame: bytes) -> None:
    """Send a frame, after what waits. Raises Disconnected."""
    if stream.to_controller:
        stream.to_controller += frame
        return
    sent = stream.ws.send_some(frame)
    if sent < len(frame):
        stream.to_controller += frame[sent:]


def _send_on(stream: _Stream) -> None:
    sent = stream.ws.send_some(bytes(stream.to_controller))
    del stream.to_controller[:sent]


def _write_on(stream: _Stream) -> None:
    stream.to_link[:] = _write(stream, bytes(stream.to_link))
    _end_input(stream)


def _write(stream: _Stream, data: bytes) -> bytes:
    """What the program has not taken. What it does not want any more is dropped."""
    try:
        return data[stream.link.send(data) :]
    except (BlockingIOError, InterruptedError):
        return data
    except OSError:
        stream.ends_input = True
        return b""


def _end_input(stream: _Stream) -> None:
    """Close the program's input once it has taken everything."""
    if stream.ends_input and not stream.to_link:
        with suppress(OSError):  # the program has closed the connection
            stream.link.shutdown(socket.SHUT_WR)
