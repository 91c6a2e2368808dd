"""Tells the controller of checkpoints: tails `checkpoints.jsonl` and says each line until it is acked.

A line's number is its `seq`, so the file is the whole state, and a restarted agent counts the same.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perdure.agent.websocket import Disconnected, WebSocket

POLL_S = 0.05
FIELDS = ("step", "state", "path", "at")
# What a line may say besides.
MORE_FIELDS = ("total_steps",)


class CheckpointTeller:
    """A stream of the channel's, with a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = threading.Condition()
        self._ws: WebSocket | None = None
        self._acked = 0
        self._told_bytes = 0
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def attach(self, ws: WebSocket, welcome: dict[str, Any]) -> None:
        with self._changed:
            self._ws, self._acked, self._told_bytes = ws, int(welcome["checkpoint_seq"]), 0
            self._changed.notify_all()

    def detach(self) -> None:
        with self._changed:
            self._ws = None

    def hear(self, message: dict[str, Any]) -> None:
        if message.get("type") == "checkpoint_ack":
            self._acked = max(self._acked, int(message["seq"]))

    def wait_told(self, timeout_s: float) -> bool:
        """Wait until every line was sent on this connection; whether it was."""
        with self._changed:
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._told_bytes >= _size(self._path), timeout_s)

    def newest_seq(self) -> int:
        """How many lines there are to tell."""
        try:
            return sum(_parse(line) is not None for line in self._path.read_bytes().splitlines())
        except OSError:
            return 0

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._ws is None:
                    self._changed.wait()
                ws = self._ws
            try:
                self._tell(ws)
            except Disconnected:
                self._lost(ws)

    def _lost(self, ws: WebSocket) -> None:
        with self._changed:
            if self._ws is ws:
                self._ws = None

    def _tell(self, ws: WebSocket) -> None:
        """Say every line after the acked one, from the file's start, until this connection is over."""
        offset, seq, partial = 0, 0, b""
        while self._ws is ws:
            data = self._read(offset)
            offset += len(data)
            *lines, partial = (partial + data).split(b"\n")
            for line in lines:
                checkpoint = _parse(line)
                if checkpoint is None:
                    continue
                seq += 1
                if seq > self._acked:
                    ws.send_text(json.dumps({"type": "checkpoint", "seq": seq, **checkpoint}))
            with self._changed:
                if self._ws is ws:
                    self._told_bytes = offset - len(partial)
                self._changed.notify_all()
                self._changed.wait(POLL_S)

    def _read(self, offset: int) -> bytes:
        try:
            with open(self._path, "rb") as file:
                file.seek(offset)
                return file.read(1 << 20)
        except OSError:
            return b""


def note_durable(path: Path, mounts: Sequence[str]) -> None:
    """Once `mounts` were flushed: note that the newest checkpoint committed on them is in its bucket."""
    try:
        lines = [line for line in map(_parse, path.read_bytes().splitlines()) if line is not None]
    except FileNotFoundError:
        return
    newest = next((line for line in reversed(lines) if line["state"] == "committed"), None)
    if newest is None or not any(_is_within(newest["path"], mount) for mount in mounts):
        return
    durable = {**newest, "state": "durable", "at": time.time()}
    if any({**line, "at": durable["at"]} == durable for line in lines):
        return  # the library has seen it first
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(durable) + "\n")


def _is_within(path: str, mount: str) -> bool:
    top = os.path.abspath(os.path.expanduser(mount))
    return any(path.startswith(place.rstrip("/") + "/") for place in (top, os.path.realpath(top)))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _parse(line: bytes) -> dict[str, Any] | None:
    """A line of the library's, or None: what a torn write left is no checkpoint, and gets no number."""
    try:
        value = json.loads(line)
        more = {name: value[name] for name in MORE_FIELDS if name in value}
        return {**{name: value[name] for name in FIELDS}, **more}
    except (ValueError, KeyError, TypeError):
        return None
