"""Ships the log file to the controller by byte offset: nothing lost, nothing twice, whatever breaks in between.

The log's length on disk and the controller's `log_offset` are the whole state: a new connection, and a new agent, go on
from there. At most `WINDOW_BYTES` are sent ahead of their ack, so memory stays small however fast the workload writes.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.agent.websocket import Disconnected, WebSocket

FRAME_BYTES = 32 * 1024  # each is a sign of life to both sides, so even a slow line must carry one in a beat or two
HEADER_ROOM = 64
WINDOW_BYTES = 1024 * 1024
POLL_S = 0.02
ACK_PATIENCE_S = 30.0


@dataclass
class _Cursor:
    """How far one connection is. A new connection gets a new one, so late acks of an old one touch nothing."""

    ws: WebSocket
    sent: int
    acked: int
    moved_at: float  # when something was last acked, or first waited to be (monotonic seconds)


class LogShipper:
    """A stream of the channel's, with a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(str(path), os.O_RDONLY | os.O_CREAT, 0o600)
        self._changed = threading.Condition()
        self._cursor: _Cursor | None = None
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def size(self) -> int:
        """Bytes that the stages have written so far."""
        return os.fstat(self._fd).st_size

    def attach(self, ws: WebSocket, welcome: dict[str, Any]) -> None:
        offset = int(welcome["log_offset"])
        with self._changed:
            self._cursor = _Cursor(ws, sent=offset, acked=offset, moved_at=time.monotonic())
            self._changed.notify_all()

    def detach(self) -> None:
        with self._changed:
            self._cursor = None
            self._changed.notify_all()

    def hear(self, message: dict[str, Any]) -> None:
        if message.get("type") != "log_ack":
            return
        with self._changed:
            cursor, offset = self._cursor, int(message["offset"])
            if cursor and offset > cursor.acked:
                cursor.acked, cursor.moved_at = offset, time.monotonic()
                cursor.sent = max(cursor.sent, offset)
            self._changed.notify_all()

    def wait_sent(self, timeout_s: float) -> bool:
        """Wait until all that is on disk now was sent; False when it was not in time, or nobody is connected."""
        size = self.size()
        return self._wait(lambda cursor: cursor.sent >= size, timeout_s)

    def wait_acked(self, timeout_s: float) -> bool:
        """Wait until the controller keeps all that is on disk now; False when not in time, or nobody is connected."""
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
                if cursor is None or not self._next_bytes(cursor):
                    self._changed.wait(POLL_S)
                    cursor = self._cursor
            if cursor is not None:
                self._ship(cursor)

    def _next_bytes(self, cursor: _Cursor) -> int:
        """How many bytes may be sent now."""
        window = WINDOW_BYTES - (cursor.sent - cursor.acked)
        return max(0, min(self.size() - cursor.sent, window, FRAME_BYTES - HEADER_ROOM))

    def _ship(self, cursor: _Cursor) -> None:
        """Send one frame, if there is anything to send. A broken connection is the channel's to notice."""
        begin = cursor.sent
        data = os.pread(self._fd, self._next_bytes(cursor), begin)
        if not data:
            if cursor.sent > cursor.acked and time.monotonic() - cursor.moved_at > ACK_PATIENCE_S:
                cursor.ws.abort()  # a new connection begins with the controller's word on what it has
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
                cursor.moved_at = time.monotonic()
            cursor.sent = max(cursor.sent, begin + len(data))
            self._changed.notify_all()
