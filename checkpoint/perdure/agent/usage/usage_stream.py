"""Sends what the machine uses to the controller, once a minute.

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

INTERVAL_S = 60.0


class UsageStream:
    """A `Stream` of the channel, with a thread of its own."""

    def __init__(
        self,
        folder: Path,
        log: Callable[[str], None],
        *,
        interval_s: float = INTERVAL_S,
        gpus: GpuMonitor | None = None,
    ) -> None:
        self._stats = ProcStats(folder)
        self._gpus = gpus or GpuMonitor(log)
        self._log = log
        self._interval_s = interval_s
        self._ws: WebSocket | None = None
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)
        self._stopped = threading.Event()

    def start(self) -> None:
        self._gpus.start()
        self._thread.start()

    def attach(self, ws: WebSocket, welcome: dict[str, Any]) -> None:  # noqa: ARG002 - of the protocol
        self._ws = ws

    def detach(self) -> None:
        self._ws = None

    def handle_message(self, message: dict[str, Any]) -> None:
        """Nothing is acknowledged."""

    def _run(self) -> None:
        last_error = ""
        self._try_to_read()  # rates are since then
        while not self._stopped.wait(self._interval_s):
            usage, error = self._try_to_read()
            if error and error != last_error:
                self._log(f"the use of this machine is not reported: {error}")
            last_error = error
            if usage is not None:
                self._send(usage, self._gpus.take_means())

    def _try_to_read(self) -> tuple[dict[str, float] | None, str]:
        """The use since the last call or, if the system does not tell it now, why."""
        try:
            return self._stats.read_usage(), ""
        except (OSError, ValueError, KeyError, IndexError) as error:
            return None, repr(error)

    def _send(self, usage: dict[str, float], gpus: list[dict[str, float]]) -> None:
        ws = self._ws
        if ws is None:
            return
        try:
            ws.send_text(json.dumps({"type": "usage", "at": clock.now(), **usage, "gpus": gpus}))
        except Disconnected:
            self._ws = None
