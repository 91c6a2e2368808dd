"""`LogStream`: which bytes of the log it sends when the controller acknowledges, holds or cuts it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from perdure.agent.link.log_stream import WINDOW_BYTES, LogStream
from perdure.agent.link.websocket import WebSocket
from support.helpers.timing import wait_until

OUTPUT = bytes(range(256)) * 1000


class Controller:
    """The other end of the connection: records the frames that it receives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.frames: list[tuple[int, bytes]] = []
        self.aborted = False

    def send_binary(self, frame: bytes) -> None:
        header, _, data = frame.partition(b"\n")
        with self._lock:
            self.frames.append((json.loads(header)["offset"], data))

    def abort(self) -> None:
        self.aborted = True

    def sent(self) -> int:
        with self._lock:
            return max((offset + len(data) for offset, data in self.frames), default=0)

    def log(self) -> bytes:
        """What the frames amount to; those beyond a gap are not stored."""
        stored = b""
        with self._lock:
            for offset, data in self.frames:
                if offset <= len(stored):
                    stored += data[len(stored) - offset :]
        return stored


@pytest.fixture
def stream(tmp_path: Path) -> LogStream:
    (tmp_path / "log").write_bytes(OUTPUT)
    stream = LogStream(tmp_path / "log")
    stream.start()
    return stream


def attach(stream: LogStream, offset: int = 0) -> Controller:
    controller = Controller()
    stream.attach(cast(WebSocket, controller), {"log_offset": offset})
    return controller


def deliver(stream: LogStream, **message: Any) -> None:
    stream.handle_message(message)


def test_hold__sends_the_same_bytes_again_later(stream: LogStream) -> None:
    assert len(OUTPUT) < WINDOW_BYTES
    controller = attach(stream)
    wait_until(lambda: controller.sent() == len(OUTPUT), "the whole log")
    controller.frames.clear()
    deliver(stream, type="log_hold", offset=0, retry_s=0.2)
    wait_until(lambda: controller.log() == OUTPUT, "the whole log again")
    deliver(stream, type="log_ack", offset=len(OUTPUT))
    assert stream.wait_acked(5.0)
    assert not controller.aborted


def test_hold__sends_nothing_before_its_time(stream: LogStream) -> None:
    controller = attach(stream)
    wait_until(lambda: controller.sent() == len(OUTPUT), "the whole log")
    deliver(stream, type="log_hold", offset=100, retry_s=3600.0)
    controller.frames.clear()
    assert not stream.wait_sent(0.3)
    assert controller.frames == []


@pytest.mark.parametrize("is_known_before", [True, False])
def test_cut_log__is_not_sent_any_further(stream: LogStream, is_known_before: bool) -> None:
    controller = attach(stream, 2**62 if is_known_before else 0)
    if not is_known_before:
        deliver(stream, type="log_ack", offset=2**62)
    assert stream.wait_sent(5.0)
    assert stream.wait_acked(5.0)
    assert not controller.aborted
