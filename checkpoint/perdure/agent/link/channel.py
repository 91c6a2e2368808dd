"""The connection to the controller: open for as long as the agent lives, and reopened whenever it breaks.

Sends what `outbox`, `checkpoint_stream` and `log_stream` hold to the controller (`nodes.session` there).
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from perdure.agent import clock
from perdure.agent.link.client import ControllerClient, TokenRevoked, Unreachable
from perdure.agent.link.outbox import Outbox
from perdure.agent.link.websocket import Disconnected, WebSocket

RETRY_INITIAL_S, RETRY_MAX_S = 0.2, 5.0
WELCOME_TIMEOUT_S = 10.0
MISSED_HEARTBEATS, MIN_SILENCE_S = 3.0, 3.0
HEALTHY_AFTER_S = 2.0  # a connection that lasted this long resets the backoff


class Stream(Protocol):
    """Numbered data that is sent until it is acknowledged: the log, the checkpoints."""

    def attach(self, ws: WebSocket, welcome: dict[str, Any]) -> None:
        """A connection is open: continue from the position in `welcome`."""

    def detach(self) -> None:
        """The connection is over."""

    def handle_message(self, message: dict[str, Any]) -> None:
        """Receive a message of the controller; ignore all but the acknowledgements of this stream."""


class Backoff:
    """Exponential backoff from `RETRY_INITIAL_S` to `RETRY_MAX_S`, with jitter of up to half of each wait.

    `reconnect_spread_s`: the time over which all nodes spread their calls while nobody answers.
    """

    def __init__(self) -> None:
        self.reconnect_spread_s = 0.0
        self.reset()

    def reset(self) -> None:
        self._next_s = RETRY_INITIAL_S
        self._has_spread = False

    def wait_s(self, *, nobody_answered: bool = False) -> float:
        """The seconds to wait before the next call. `nobody_answered`: every other node is calling, too."""
        wait_s, self._next_s = self._next_s, min(max(RETRY_MAX_S, self.reconnect_spread_s), self._next_s * 2)
        if nobody_answered and not self._has_spread:
            self._has_spread = True
            return random.uniform(0.0, max(wait_s, self.reconnect_spread_s))  # noqa: S311 (jitter, no secret)
        return wait_s * random.uniform(0.5, 1.0)  # noqa: S311


class Channel:
    """Exchanges messages with the controller. `on_directive` gets every directive; a 401 calls `on_revoked` once."""

    def __init__(
        self,
        client: ControllerClient,
        outbox: Outbox,
        streams: Sequence[Stream],
        *,
        on_directive: Callable[[dict[str, Any]], None],
        on_revoked: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        self._client = client
        self._outbox = outbox
        self._streams = streams
        self._on_directive = on_directive
        self._on_revoked = on_revoked
        self._log = log
        self._backoff = Backoff()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="channel", daemon=True)
        self.last_contact = time.monotonic()
        self.is_connected = False

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Send what is pending, then close the connection."""
        self._closing.set()
        self._outbox.wake()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        failure_logged = nobody_answered = False
        while not self._closing.is_set():
            try:
                ws = self._client.open_channel()
            except TokenRevoked:
                self._on_revoked()
                return
            except Unreachable as error:
                if not failure_logged:
                    self._log(f"the controller cannot be reached, retrying: {error}")
                failure_logged = nobody_answered = True
            else:
                failure_logged = nobody_answered = False
                began = time.monotonic()
                self._use_connection(ws)
                if time.monotonic() - began >= HEALTHY_AFTER_S:
                    self._backoff.reset()
            self._closing.wait(self._backoff.wait_s(nobody_answered=nobody_answered))

    def _use_connection(self, ws: WebSocket) -> None:
        """Use one connection until it ends."""
        try:
            self._exchange_messages(ws)
        except Exception as error:  # noqa: BLE001 (whatever the network sent, the node must reconnect)
            self._log(f"the connection to the controller ended: {error!r}")
        finally:
            self.is_connected = False
            for stream in self._streams:
                stream.detach()
            ws.close()

    def _exchange_messages(self, ws: WebSocket) -> None:
        """Raises Disconnected, or any exception when the controller sends malformed messages."""
        for frame in self._outbox.opening_frames():
            ws.send_text(_to_json(frame))
        welcome = _await_welcome(ws)
        heartbeat_interval_s = float(welcome["heartbeat_interval_s"])
        self._backoff.reconnect_spread_s = float(welcome.get("reconnect_spread_s", 0.0))
        self.is_connected = True
        self._log("connected to the controller")
        self._on_directive(_with_local_deadline(welcome))
        for stream in self._streams:
            stream.attach(ws, welcome)
        while True:
            self.last_contact = ws.last_received
            closing = self._closing.is_set()
            for frame in self._outbox.take_pending():
                ws.send_text(_to_json(frame))
            if closing:
                return
            self._handle_message(ws.receive(heartbeat_interval_s / 4, self._outbox.wake_fd))
            _keep_alive(ws, heartbeat_interval_s, by_ping=welcome.get("heartbeat") == "ping")

    def _handle_message(self, text: str | bytes | None) -> None:
        if not isinstance(text, str):
            return
        message = json.loads(text)
        if message.get("type") == "directive":
            self._on_directive(_with_local_deadline(message))
        for stream in self._streams:
            stream.handle_message(message)


def _to_json(frame: dict[str, Any]) -> str:
    """The frame as text. The controller rejects what is not UTF-8, such as the name of a file in an error message."""
    return json.dumps(frame, ensure_ascii=False).encode("utf-8", "replace").decode()


def _with_local_deadline(message: dict[str, Any]) -> dict[str, Any]:
    """The message's directive, its deadline converted from the controller's clock to this node's."""
    directive: dict[str, Any] = message["directive"]
    if directive.get("deadline") is None:
        return directive
    left_s = float(directive["deadline"]) - float(message["now"])
    return {**directive, "deadline": clock.now() + left_s}


def _await_welcome(ws: WebSocket) -> dict[str, Any]:
    message = ws.receive(WELCOME_TIMEOUT_S)
    welcome = json.loads(message) if message is not None else None
    if not isinstance(welcome, dict) or welcome.get("type") != "welcome":
        raise Disconnected("the controller did not send a welcome")
    return welcome


def _keep_alive(ws: WebSocket, heartbeat_interval_s: float, *, by_ping: bool) -> None:
    """Send a heartbeat and a ping if nothing else was sent lately: a connection may only look alive.

    `by_ping`: the controller counts the ping as a heartbeat. Raises Disconnected if the controller is silent.
    """
    now = time.monotonic()
    if now - ws.last_received > max(MIN_SILENCE_S, MISSED_HEARTBEATS * heartbeat_interval_s):
        raise Disconnected("the controller has sent nothing for too long")
    if now - ws.last_sent >= heartbeat_interval_s * 0.9:
        if not by_ping:
            ws.send_text(json.dumps({"type": "heartbeat", "at": time.time()}))
        ws.ping()
