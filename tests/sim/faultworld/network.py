"""One agent's connection to a controller: in order while it lasts; each side learns of its end in its own time."""

from __future__ import annotations

import json
import random
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from faultworld.nodes import Node
    from faultworld.process import Process

LATENCY_S = (0.002, 0.06)
# After this long without a word each side gives a connection up.
PATIENCE_S = 15.0


class Link:
    """Both ends of a connection. The controller's end is what `Channel.serve` takes for a WebSocket."""

    def __init__(self, node: Node, process: Process, rng: random.Random) -> None:
        self._node, self._process, self._rng = node, process, rng
        self._scheduler = process.world.scheduler
        self._inbox: deque[dict[str, Any]] = deque()
        self._waiter: Any = None
        self._up_at = self._down_at = 0.0  # when the last frame of each direction arrives
        self.is_severed = False  # frames go nowhere, and nobody is told
        self.node_open = True
        self.controller_open = True
        self.welcomed = False
        self.sent_log = 0
        self.shipping = False
        self.last_sent = self._scheduler.now()

    # --- the node's end -----------------------------------------------------------------------------------

    def say(self, message: dict[str, Any]) -> None:
        self._up({"type": "websocket.receive", "text": json.dumps(message)})

    def say_bytes(self, data: bytes) -> None:
        self._up({"type": "websocket.receive", "bytes": data})

    def _up(self, message: dict[str, Any]) -> None:
        self.last_sent = self._scheduler.now()
        if self.node_open and not self.is_severed:
            self._up_at = self._arrival(self._up_at)
            self._process.at(self._up_at, self._arrive, message)

    def _arrive(self, message: dict[str, Any]) -> None:
        if not self.controller_open:
            return
        self._inbox.append(message)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- how it ends --------------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """The node's side closes: what was sent before still arrives."""
        if self.node_open:
            self._up({"type": "websocket.disconnect"})
            self.node_open = False

    def cut(self) -> None:
        """Both sides learn of it soon."""
        self.hang_up()
        self._scheduler.after(self._latency(), self._node.link_ended, self)

    def sever(self) -> None:
        """Nothing gets through any more, and nobody says so."""
        self.is_severed = True
        self._scheduler.after(PATIENCE_S, self._node.link_ended, self)

    def node_gives_up(self) -> None:
        """The node has heard nothing for long enough."""
        if self.node_open:
            self._node.link_ended(self)

    def reset(self) -> None:
        """The controller's side is gone."""
        self.controller_open = False
        if not self.is_severed:
            self._scheduler.after(self._latency(), self._node.link_ended, self)

    # --- the controller's end, as starlette's WebSocket ------------------------------------------------------

    async def accept(self) -> None:
        """Nothing to say."""

    async def receive(self) -> dict[str, Any]:
        while not self._inbox:
            self._waiter = self._process.loop.create_future()
            await self._waiter
        return self._inbox.popleft()

    async def send_text(self, text: str) -> None:
        if not self.controller_open:
            raise RuntimeError("the connection is closed")
        if not self.is_severed:
            self._down_at = self._arrival(self._down_at)
            self._scheduler.at(self._down_at, self._node.hears, self, text)

    async def close(self) -> None:
        self._arrive({"type": "websocket.disconnect"})
        self.reset()

    def _arrival(self, last: float) -> float:
        return max(last, self._scheduler.now() + self._latency())

    def _latency(self) -> float:
        return self._rng.uniform(*LATENCY_S)
