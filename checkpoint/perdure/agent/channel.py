"""The one connection to the controller: kept for as long as the agent lives, opened again whenever it breaks."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from perdure.agent import clock
from perdure.agent.controller import Controller, Unreachable, WrittenOff
from perdure.agent.report import Outbox
from perdure.agent.websocket import Disconnected, WebSocket

RETRY_FIRST_S, RETRY_CAP_S = 0.2, 5.0
WELCOME_TIMEOUT_S = 10.0
SILENT_BEATS, SILENT_MIN_S = 3.0, 3.0
HEALTHY_S = 2.0  # a connection that lasted so long was a good one


class Stream(Protocol):
    """Something numbered that is sent until it is acked: the log, the checkpoints."""

    def attach(self, ws: WebSocket, welcome: dict[str, Any]) -> None:
        """Go on from where the controller says it stands."""

    def detach(self) -> None:
        """The connection is over."""

    def hear(self, message: dict[str, Any]) -> None:
        """Any message of the controller's; those that are not an ack of this stream's are ignored."""


class Backoff:
    """Waits that double from `RETRY_FIRST_S` to `RETRY_CAP_S`, each cut by up to half: nodes must not call in step.

    `crowd_s`: over how long all nodes shall spread their calls while nobody answers.
    """

    def __init__(self) -> None:
        self.crowd_s = 0.0
        self.reset()

    def reset(self) -> None:
        self._next_s = RETRY_FIRST_S
        self._was_spread = False

    def wait_s(self, *, unanswered: bool = False) -> float:
        """`unanswered`: nobody was there, so everybody else is calling, too."""
        wait_s, self._next_s = self._next_s, min(max(RETRY_CAP_S, self.crowd_s), self._next_s * 2)
        if unanswered and not self._was_spread:
            self._was_spread = True
            return random.uniform(0.0, max(wait_s, self.crowd_s))  # noqa: S311 (jitter, no secret)
        return wait_s * random.uniform(0.5, 1.0)  # noqa: S311


class Channel:
    """Speaks for the agent. `direct` gets every directive, `written_off` is called once on a 401."""

    def __init__(
        self,
        controller: Controller,
        outbox: Outbox,
        streams: Sequence[Stream],
        *,
        direct: Callable[[dict[str, Any]], None],
        written_off: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        self._controller = controller
        self._outbox = outbox
        self._streams = streams
        self._direct = direct
        self._written_off = written_off
        self._log = log
        self._backoff = Backoff()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="channel", daemon=True)
        self.last_contact = time.monotonic()
        self.is_connected = False

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Say what is still unsaid, and goodbye."""
        self._closing.set()
        self._outbox.wake()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        complained = unanswered = False
        while not self._closing.is_set():
            try:
                ws = self._controller.open_channel()
            except WrittenOff:
                self._written_off()
                return
            except Unreachable as error:
                if not complained:
                    self._log(f"the controller can not be reached, calling again until it can: {error}")
                complained = unanswered = True
            else:
                complained = unanswered = False
                began = time.monotonic()
                self._hold(ws)
                if time.monotonic() - began >= HEALTHY_S:
                    self._backoff.reset()
            self._closing.wait(self._backoff.wait_s(unanswered=unanswered))

    def _hold(self, ws: WebSocket) -> None:
        """Use one connection until it is over."""
        try:
            self._converse(ws)
        except Exception as error:  # noqa: BLE001 (whatever came over the network: a node must never go deaf)
            self._log(f"the connection to the controller ended: {error!r}")
        finally:
            self.is_connected = False
            for stream in self._streams:
                stream.detach()
            ws.close()

    def _converse(self, ws: WebSocket) -> None:
        """Raises Disconnected; or anything when the controller talks nonsense."""
        for frame in self._outbox.first_frames():
            ws.send_text(json.dumps(frame))
        welcome = _await_welcome(ws)
        beat_s = float(welcome["beat_s"])
        self._backoff.crowd_s = float(welcome.get("calls_within_s", 0.0))
        self.is_connected = True
        self._log("connected to the controller")
        self._direct(_on_own_clock(welcome))
        for stream in self._streams:
            stream.attach(ws, welcome)
        while True:
            self.last_contact = ws.last_received
            closing = self._closing.is_set()
            for frame in self._outbox.take():
                ws.send_text(json.dumps(frame))
            if closing:
                return
            self._hear(ws.receive(beat_s / 4, self._outbox.wake_fd))
            _keep_alive(ws, beat_s, by_ping=welcome.get("beat") == "ping")

    def _hear(self, text: str | bytes | None) -> None:
        if not isinstance(text, str):
            return
        message = json.loads(text)
        if message.get("type") == "directive":
            self._direct(_on_own_clock(message))
        for stream in self._streams:
            stream.hear(message)


def _on_own_clock(message: dict[str, Any]) -> dict[str, Any]:
    """The message's directive with its deadline on this node's clock, which need not agree with the controller's."""
    directive: dict[str, Any] = message["directive"]
    if directive.get("deadline") is None:
        return directive
    left_s = float(directive["deadline"]) - float(message["now"])
    return {**directive, "deadline": clock.now() + left_s}


def _await_welcome(ws: WebSocket) -> dict[str, Any]:
    message = ws.receive(WELCOME_TIMEOUT_S)
    welcome = json.loads(message) if message is not None else None
    if not isinstance(welcome, dict) or welcome.get("type") != "welcome":
        raise Disconnected("the controller did not say welcome")
    return welcome


def _keep_alive(ws: WebSocket, beat_s: float, *, by_ping: bool) -> None:
    """Beat when nothing else was said, and ask for a sign of life: a connection may only look alive.

    `by_ping`: the controller takes the question for a beat.
    """
    now = time.monotonic()
    if now - ws.last_received > max(SILENT_MIN_S, SILENT_BEATS * beat_s):
        raise Disconnected("the controller has gone silent")
    if now - ws.last_sent >= beat_s * 0.9:
        if not by_ping:
            ws.send_text(json.dumps({"type": "beat", "at": time.time()}))
        ws.ping()
