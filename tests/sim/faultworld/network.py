"""The connection of an agent to a controller. Messages stay in order, and each side notices the end by itself."""

from __future__ import annotations

import json
import random
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from faultworld.nodes import Node
    from faultworld.process import Process

LATENCY_S = (0.002, 0.06)
# Each side closes a connection after this long without a frame.
IDLE_TIMEOUT_S = 15.0


class Link:
    """Both sides of a connection. `NodeSessions.serve` uses it as a WebSocket."""

    def __init__(self, node: Node, process: Process, rng: random.Random) -> None:
        self._node, self._process, self._rng = node, process, rng
        self._scheduler = process.world.scheduler
        self._inbox: deque[dict[str, Any]] = deque()
        self._waiter: Any = None
        # When the last frame of each direction arrives.
        self._arrival_at_controller = self._arrival_at_node = 0.0
        self.is_blackholed = False  # frames are lost without an error
        self.is_open_at_node = True
        self.is_open_at_controller = True
        self.is_welcomed = False  # the node has received `welcome`
        self.sent_log_bytes = 0
        self.log_upload_is_scheduled = False
        self.last_sent = self._scheduler.now()

    # --- the node's side ----------------------------------------------------------------------------------

    def send(self, message: dict[str, Any]) -> None:
        self._send({"type": "websocket.receive", "text": json.dumps(message)})

    def send_raw_text(self, text: str) -> None:
        """Send text that may be no JSON."""
        self._send({"type": "websocket.receive", "text": text})

    def send_bytes(self, data: bytes) -> None:
        self._send({"type": "websocket.receive", "bytes": data})

    def _send(self, message: dict[str, Any]) -> None:
        self.last_sent = self._scheduler.now()
        if self.is_open_at_node and not self.is_blackholed:
            self._arrival_at_controller = self._next_arrival(self._arrival_at_controller)
            self._process.at(self._arrival_at_controller, self.deliver, message)

    def deliver(self, message: dict[str, Any]) -> None:
        """A message arrives at the controller."""
        if not self.is_open_at_controller:
            return
        self._inbox.append(message)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- its end ------------------------------------------------------------------------------------------

    def close_by_node(self) -> None:
        """The node closes the connection. Frames that it sent before still arrive."""
        if self.is_open_at_node:
            self._send({"type": "websocket.disconnect"})
            self.is_open_at_node = False

    def disconnect(self) -> None:
        """The connection breaks, and both sides notice it soon."""
        self.close_by_node()
        self._scheduler.after(self._latency(), self._node.on_link_ended, self)

    def blackhole(self) -> None:
        """Lose all frames without an error, from now on."""
        self.is_blackholed = True
        self._scheduler.after(IDLE_TIMEOUT_S, self._node.on_link_ended, self)

    def time_out_node(self) -> None:
        """The node closes the connection, because it has received nothing for too long."""
        if self.is_open_at_node:
            self._node.on_link_ended(self)

    def close_by_controller(self) -> None:
        """The controller closes the connection."""
        self.is_open_at_controller = False
        if not self.is_blackholed:
            self._scheduler.after(self._latency(), self._node.on_link_ended, self)

    # --- the controller's side: the methods of starlette's WebSocket ---------------------------------------

    async def accept(self) -> None:
        """Required by the protocol."""

    async def receive(self) -> dict[str, Any]:
        while not self._inbox:
            self._waiter = self._process.loop.create_future()
            await self._waiter
        return self._inbox.popleft()

    async def send_text(self, text: str) -> None:
        if not self.is_open_at_controller:
            raise RuntimeError("the connection is closed")
        if not self.is_blackholed:
            self._arrival_at_node = self._next_arrival(self._arrival_at_node)
            self._scheduler.at(self._arrival_at_node, self._node.on_text, self, text)

    async def close(self, code: int = 1000, reason: str | None = None) -> None:
        self.deliver({"type": "websocket.disconnect"})
        self.close_by_controller()

    def _next_arrival(self, last: float) -> float:
        return max(last, self._scheduler.now() + self._latency())

    def _latency(self) -> float:
        return self._rng.uniform(*LATENCY_S)
