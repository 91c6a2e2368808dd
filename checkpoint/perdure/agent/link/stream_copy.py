"""Copies the bytes of a stream between a WebSocket and descriptors. Both ends use it: the agent and the command line.

Each direction has a thread of its own, so that one that waits for a slow reader does not hold up the other. Nothing is
buffered beyond one message: a reader that stops reading stops the writer at the other end (flow control by TCP).
"""

from __future__ import annotations

import errno
import json
import os
import select
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from perdure.agent.link.websocket import Disconnected, WebSocket

READ_BYTES = 32 * 1024
PING_INTERVAL_S = 15.0
_POLL_S = 0.2


def receive_all(
    ws: WebSocket, on_data: Callable[[bytes], None], on_control: Callable[[Mapping[str, Any]], None]
) -> NoReturn:
    """Hand every message to `on_data` or, as parsed JSON, to `on_control`, until either raises. Raises Disconnected.

    Pings keep the connection open in proxies, and show the controller that this side lives. They may be answered late:
    a controller whose other side reads slowly does not read from here. So the system finds out if the controller is
    gone (`WebSocket.expect_acknowledgements`).
    """
    while True:
        message = ws.receive(PING_INTERVAL_S / 3)
        if isinstance(message, bytes):
            on_data(message)
        elif message is not None:
            on_control(parse_control(message))
        else:
            ws.ping_if_idle(PING_INTERVAL_S)


def send_all(
    ws: WebSocket,
    sources: Mapping[int, bytes],
    *,
    wake: int,
    is_over: Callable[[], bool] = lambda: False,
    on_data: Callable[[], None] = lambda: None,
) -> None:
    """Send what can be read from the descriptors `sources`, each message after its prefix, until all of them end.

    Returns early once `wake` is readable, or if `is_over` and nothing can be read. `on_data` is called before each
    message. Raises Disconnected.
    """
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    for source in sources:
        poll.register(source, select.POLLIN)
    left = set(sources)
    while left:
        ready = {descriptor for descriptor, _ in poll.poll(_POLL_S * 1000)}
        if wake in ready:
            return
        if not ready and is_over():
            return
        for source in ready:
            data = _read(source)
            if data:
                on_data()
                ws.send_binary(sources[source] + data)
            else:
                poll.unregister(source)
                left.remove(source)


def write_all(ws: WebSocket, sink: int, data: bytes) -> bool:
    """Write `data` to the non-blocking descriptor `sink`; False if nobody reads it any more.

    Raises Disconnected if the connection ends while the reader of `sink` is slow.
    """
    left = memoryview(data)
    poll = select.poll()
    poll.register(sink, select.POLLOUT)
    poll.register(ws.fileno(), select.POLLRDHUP)
    while left:
        try:
            left = left[os.write(sink, left) :]
        except BlockingIOError:
            if ws.fileno() in {descriptor for descriptor, _ in poll.poll()}:
                raise Disconnected("the controller closed the stream") from None
        except OSError:
            return False
    return True


def send_control(ws: WebSocket, message: Mapping[str, Any]) -> None:
    """Raises Disconnected."""
    ws.send_text(json.dumps(message))


def parse_control(text: str) -> dict[str, Any]:
    """A control message. Raises Disconnected if it is not a JSON object."""
    try:
        message = json.loads(text)
    except ValueError:
        raise Disconnected("the controller sent a control message that is not JSON") from None
    if not isinstance(message, dict):
        raise Disconnected("the controller sent a control message that is not an object")
    return message


def _read(source: int) -> bytes:
    """What can be read now; empty at the end. The end of a terminal is an I/O error."""
    try:
        return os.read(source, READ_BYTES)
    except OSError as error:
        if error.errno in (errno.EIO, errno.ECONNRESET, errno.EBADF):
            return b""
        raise
