"""Sends the checkpoint journal to the controller: tails `checkpoints.jsonl`, and sends each line until it is acked.

A line's number is its `seq`, so the file is the whole state, and a restarted agent counts the same. `channel` has the
connection.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure.agent.link.websocket import Disconnected, WebSocket
from perdure.agent.storage.checkpoint_journal import LineReader, file_size, parse_line

POLL_S = 0.05
DISCONNECTED_POLL_S = 0.25  # nothing can be sent, so only the growth of the file matters


class CheckpointStream:
    """A `Stream` of the channel, with a thread of its own.

    `on_growth`: called from that thread whenever the file has grown, also while no controller is connected.
    """

    def __init__(self, path: Path, *, on_growth: Callable[[], None] = lambda: None) -> None:
        self._path = path
        self._on_growth = on_growth
        self._known_size = 0
        self._changed = threading.Condition()
        self._ws: WebSocket | None = None
        self._acked = 0
        self._sent_bytes = 0
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def attach(self, ws: WebSocket, welcome: dict[str, Any]) -> None:
        with self._changed:
            self._ws, self._acked, self._sent_bytes = ws, int(welcome["checkpoint_seq"]), 0
            self._changed.notify_all()

    def detach(self) -> None:
        with self._changed:
            self._ws = None

    def handle_message(self, message: dict[str, Any]) -> None:
        if message.get("type") == "checkpoint_ack":
            self._acked = max(self._acked, int(message["seq"]))

    def wait_sent(self, timeout_s: float) -> bool:
        """Wait until every line was sent on this connection; False on timeout."""
        with self._changed:
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._sent_bytes >= file_size(self._path), timeout_s)

    def newest_seq(self) -> int:
        """The number of lines to send."""
        reader, ends_at, count = LineReader(self._path), file_size(self._path), 0
        while reader.offset < ends_at and (lines := reader.next_lines()) is not None:
            count += sum(parse_line(line) is not None for line in lines)
        return count

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._ws is None:
                    self._changed.wait(DISCONNECTED_POLL_S)  # `attach` ends it
                ws = self._ws
            self._report_growth()
            if ws is None:
                continue
            try:
                self._send_lines(ws)
            except Disconnected:
                self._drop_connection(ws)

    def _report_growth(self) -> None:
        size = file_size(self._path)
        if size != self._known_size:
            self._known_size = size
            self._on_growth()

    def _drop_connection(self, ws: WebSocket) -> None:
        with self._changed:
            if self._ws is ws:
                self._ws = None

    def _send_lines(self, ws: WebSocket) -> None:
        """Send every line after the acknowledged one until this connection ends. Lines are counted from the start."""
        reader, seq = LineReader(self._path), 0
        while self._ws is ws:
            self._report_growth()
            for line in reader.next_lines() or ():
                checkpoint = parse_line(line)
                if checkpoint is None:
                    continue
                seq += 1
                if seq > self._acked:
                    ws.send_text(json.dumps({"type": "checkpoint", "seq": seq, **checkpoint}))
            with self._changed:
                if self._ws is ws:
                    self._sent_bytes = reader.consumed_bytes
                self._changed.notify_all()
                self._changed.wait(POLL_S)
