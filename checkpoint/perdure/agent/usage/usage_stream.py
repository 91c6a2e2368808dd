"""Sends to the controller what the machine uses and the program reports: soon after the start, then once a minute.

A frame that cannot be sent is dropped: the next one is as good.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Callable

from perdure.agent import clock
from perdure.agent.link.websocket import Disconnected, WebSocket
from perdure.agent.usage.gpu_monitor import GpuMonitor
from perdure.agent.usage.proc_stats import ProcStats
from perdure.agent.usage.progress_file import ProgressFile

INTERVAL_S = 60.0
_FIRST_INTERVALS = (1 / 6, 1 / 3, 1 / 2)  # of a whole one: short jobs have graphs, too


class UsageStream:
    """A `Stream` of the channel, with a thread of its own. `progress`: the file of the program's reports."""

    def __init__(
        self,
        folder: Path,
        log: Callable[[str], None],
        *,
        interval_s: float = INTERVAL_S,
        gpus: GpuMonitor | None = None,
        progress: Path | None = None,
    ) -> None:
        self._stats = ProcStats(folder)
        self._gpus = gpus or GpuMonitor(log)
        self._progress = None if progress is None else ProgressFile(progress)
        self._log = log
        self._interval_s = interval_s
        self._ws: WebSocket | None = None
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)
        self._is_due = threading.Event()
        self._last_error = ""

    def start(self) -> None:
        self._gpus.start()
        self._thread.start()

    def attach(self, ws: WebSocket, welcome: dict[str, Any]) -> None:  # noqa: ARG002 - of the protocol
        self._ws = ws

    def detach(self) -> None:
        self._ws = None

    def handle_message(self, message: dict[str, Any]) -> None:
        """Nothing is acknowledged."""

    def send_now(self) -> None:
        """Send a frame without waiting for the interval, because the program has ended. Does not block."""
        self._is_due.set()

    def _run(self) -> None:
        self._try_to_read()  # rates are since then
        first = iter(_FIRST_INTERVALS)
        while True:
            self._is_due.wait(self._interval_s * next(first, 1.0))
            self._is_due.clear()
            usage = self._try_to_read()
            if usage is not None:
                self._send(usage, self._gpus.take_means())

    def _try_to_read(self) -> dict[str, float] | None:
        """The use since the last call; None if the system does not tell it now, which is logged once."""
        error, usage = "", None
        try:
            usage = self._stats.read_usage()
        except (OSError, ValueError, KeyError, IndexError) as caught:
            error = repr(caught)
        if error and error != self._last_error:
            self._log(f"the use of this machine is not reported: {error}")
        self._last_error = error
        return usage

    def _send(self, usage: dict[str, float], gpus: list[dict[str, float]]) -> None:
        ws = self._ws
        if ws is None:
            return
        progress = {} if self._progress is None else self._progress.take_new()
        try:
            ws.send_text(json.dumps({"type": "usage", "at": clock.now(), **usage, "gpus": gpus, **progress}))
        except Disconnected:
            self._ws = None
