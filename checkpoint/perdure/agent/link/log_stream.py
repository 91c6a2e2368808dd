"""Sends the log file to the controller by byte offset, so that no byte is lost or stored twice.

The log's length on disk and the controller's `log_offset` are the whole state: a new connection, or a new agent,
continues from there. At most `WINDOW_BYTES` are unacknowledged, so memory stays small however fast the workload writes.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.agent.link.websocket import Disconnected, WebSocket

FRAME_BYTES = 32 * 1024  # small, because a frame proves liveness: a slow link must carry one within two heartbeats
HEADER_MAX_BYTES = 64
WINDOW_BYTES = 1024 * 1024
POLL_S = 0.02
ACK_TIMEOUT_S = 30.0


@dataclass
class _Cursor:
    """The position of one connection. Each has its own, so a late ack of an old one changes nothing."""

    ws: WebSocket
    sent: int
    acked: int
    progressed_at: float  # the last ack, or the first send that waits for one (monotonic seconds)
    held_until: float = 0.0  # nothing is sent before: the controller has no room for it now (monotonic seconds)


class LogStream:
    """A `Stream` of the channel, with a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(str(path), os.O_RDONLY | os.O_CREAT, 0o600)
        self._changed = threading.Condition()
        self._cursor: _Cursor | None = None
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def size(self) -> int:
        """Bytes in the log so far."""
        return os.fstat(self._fd).st_size

    def attach(self, ws: WebSocket, welcome: dict[str, Any]) -> None:
        offset = int(welcome["log_offset"])
        with self._changed:
            self._cursor = _Cursor(ws, sent=offset, acked=offset, progressed_at=time.monotonic())
            self._changed.notify_all()

    def detach(self) -> None:
        with self._changed:
            self._cursor = None
            self._changed.notify_all()

    def handle_message(self, message: dict[str, Any]) -> None:
        if message.get("type") == "log_hold":
            self._hold(int(message["offset"]), float(message["retry_s"]))
        if message.get("type") != "log_ack":
            return
        with self._changed:
            cursor, offset = self._cursor, int(message["offset"])
            if cursor and offset > cursor.acked:
                cursor.acked, cursor.progressed_at = offset, time.monotonic()
                cursor.sent = max(cursor.sent, offset)
            self._changed.notify_all()

    def _hold(self, offset: int, retry_s: float) -> None:
        """The controller cannot store what lies beyond `offset` now: send it again in `retry_s`."""
        with self._changed:
            if (cursor := self._cursor) is not None:
                cursor.sent = cursor.acked = max(cursor.acked, offset)
                cursor.held_until = time.monotonic() + retry_s

    def wait_sent(self, timeout_s: float) -> bool:
        """Wait until everything on disk now was sent; False on timeout, or without a connection."""
        size = self.size()
        return self._wait(lambda cursor: cursor.sent >= size, timeout_s)

    def wait_acked(self, timeout_s: float) -> bool:
        """Wait until the controller has stored everything on disk now; False on timeout, or without a connection."""
        size = self.size()
        return self._wait(lambda cursor: cursor.acked >= size, timeout_s)

    def _wait(self, is_done: Any, timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        with self._changed:
            self._changed.notify_all()
            while self._cursor is not None and not is_done(self._cursor):
                left_s = until - time.monotonic()
                if left_s <= 0:
                    return False
                self._changed.wait(left_s)
            return self._cursor is not None

    def _run(self) -> None:
        while True:
            with self._changed:
                cursor = self._cursor
                if cursor is None or not self._sendable_bytes(cursor):
                    self._changed.wait(POLL_S)
                    cursor = self._cursor
            if cursor is not None:
                self._send_frame(cursor)

    def _sendable_bytes(self, cursor: _Cursor) -> int:
        """The number of bytes that may be sent now."""
        if time.monotonic() < cursor.held_until:
            return 0
        window = WINDOW_BYTES - (cursor.sent - cursor.acked)
        return max(0, min(self.size() - cursor.sent, window, FRAME_BYTES - HEADER_MAX_BYTES))

    def _send_frame(self, cursor: _Cursor) -> None:
        """Send one frame, if there is anything to send. The channel notices a broken connection."""
        begin = cursor.sent
        data = os.pread(self._fd, self._sendable_bytes(cursor), begin)
        if not data:
            if cursor.sent > cursor.acked and time.monotonic() - cursor.progressed_at > ACK_TIMEOUT_S:
                cursor.ws.abort()  # the welcome of a new connection has the controller's offset
            return
        header = json.dumps({"offset": begin}).encode() + b"\n"
        try:
            cursor.ws.send_binary(header + data)
        except Disconnected:
            with self._changed:
                if self._cursor is cursor:
                    self._cursor = None
            return
        with self._changed:
            if cursor.sent == cursor.acked:
                cursor.progressed_at = time.monotonic()
            if cursor.sent >= begin:  # otherwise the controller has asked for an earlier part meanwhile
                cursor.sent = max(cursor.sent, begin + len(data))
            self._changed.notify_all()
