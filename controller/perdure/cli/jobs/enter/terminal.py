"""This side of a stream: standard input and output, the terminal, and Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from perdure.agent.link.stream_copy import READ_BYTES, receive_all, send_control
from perdure.agent.link.websocket import Disconnected
from perdure.cli.jobs.enter.stream import Stream, StreamEnded, raise_if_last
from perdure.cli.output.interrupt import EXIT_INTERRUPTED

STDIN, STDOUT, STDERR = 0, 1, 2
_RESIZE, _INTERRUPT = b"r", b"i"


def terminal_request() -> dict[str, Any]:
    """What a node needs to know of this terminal."""
    size = shutil.get_terminal_size()
    request: dict[str, Any] = {"tty": True, "rows": size.lines or 24, "columns": size.columns or 80}
    term = os.environ.get("TERM", "")
    return request | ({"term": term} if term.replace("-", "").replace(".", "").isalnum() and len(term) <= 64 else {})


def connect_streams(
    stream: Stream, write: Callable[[bytes], None], *, clean: Callable[[Any], Any], signals: bool = False
) -> int:
    """Copy standard input to the stream, and hand what it sends to `write`, until it ends; returns the exit code.

    `signals`: the first Ctrl-C interrupts the command on the node, and the second one ends this command. Raises
    ApiError if the node ends the stream, Disconnected if it breaks.
    """

    def on_control(frame: Mapping[str, Any]) -> None:
        raise_if_last(frame, clean)

    with _events(signals=signals) as events:
        threading.Thread(target=_send_input, args=(stream, events), daemon=True).start()
        try:
            receive_all(stream.ws, write, on_control)
        except StreamEnded as ended:
            return ended.exit_code
        finally:
            stream.ws.abort()


def write_fully(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


@contextlib.contextmanager
def raw_terminal() -> Iterator[None]:
    """Standard input hands on every key, if it is a terminal."""
    if not os.isatty(STDIN):
        yield
        return
    saved = termios.tcgetattr(STDIN)
    try:
        tty.setraw(STDIN)
        yield
    finally:
        termios.tcsetattr(STDIN, termios.TCSADRAIN, saved)


@contextlib.contextmanager
def _events(*, signals: bool) -> Iterator[int]:
    """A descriptor from which changes of the terminal's size and, if `signals`, the first Ctrl-C can be read."""
    read_end, write_end = os.pipe()
    interrupted = False

    def on_resize(*_: object) -> None:
        os.write(write_end, _RESIZE)

    def on_interrupt(*_: object) -> None:
        nonlocal interrupted
        if interrupted:
            os._exit(EXIT_INTERRUPTED)
        interrupted = True
        os.write(write_end, _INTERRUPT)

    handlers = {signal.SIGWINCH: on_resize} | ({signal.SIGINT: on_interrupt} if signals else {})
    saved = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield read_end
    finally:
        for number, handler in saved.items():
            signal.signal(number, handler)


def _send_input(stream: Stream, events: int) -> None:
    """Send standard input and events until the stream ends."""
    poll = select.poll()
    poll.register(events, select.POLLIN)
    if sys.stdin is not None:
        poll.register(STDIN, select.POLLIN)
    with contextlib.suppress(Disconnected):
        if sys.stdin is None:
            send_control(stream.ws, {"type": "eof"})
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if events in ready:
                for event in os.read(events, 64):
                    _send_event(stream, bytes([event]))
            if STDIN in ready:
                try:
                    data = os.read(STDIN, READ_BYTES)
                except OSError:  # a terminal that is gone
                    data = b""
                if data:
                    stream.ws.send_binary(data)
                else:
                    poll.unregister(STDIN)
                    send_control(stream.ws, {"type": "eof"})


def _send_event(stream: Stream, event: bytes) -> None:
    if event == _INTERRUPT:
        send_control(stream.ws, {"type": "signal", "name": "INT"})
    else:
        size = shutil.get_terminal_size()
        send_control(stream.ws, {"type": "resize", "rows": size.lines or 24, "columns": size.columns or 80})
