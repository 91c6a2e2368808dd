"""WebSockets as the application sees them: of a node's session, and of both ends of a stream."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.websockets import WebSocket

from perdure.controller.api.server.node_websocket import MAX_MESSAGE_BYTES, PROTOCOL_EXTENSION


class NodeSocket(WebSocket):
    """A WebSocket that frees the memory of the handshake when it is accepted, since that of a node lasts for weeks."""

    max_message_bytes = MAX_MESSAGE_BYTES

    async def accept(self, *args: Any, **kwargs: Any) -> None:
        protocol = self.scope.get("extensions", {}).get(PROTOCOL_EXTENSION)
        if protocol is not None:
            protocol.max_message_bytes = self.max_message_bytes
        await super().accept(*args, **kwargs)
        if protocol is not None:
            self.scope = {"type": "websocket", "extensions": {PROTOCOL_EXTENSION: protocol}}
            protocol.release_handshake(self.scope)

    @property
    def last_received_at(self) -> float:
        """When the last data arrived, by the event loop's clock; 0 if the server does not record it."""
        protocol = self.scope.get("extensions", {}).get(PROTOCOL_EXTENSION)
        return float(protocol.last_received_at) if protocol else 0.0


class StreamSocket(NodeSocket):
    """One end of a stream."""

    max_message_bytes = 128 * 1024

    def lost(self) -> asyncio.Future[None]:
        """A future that is cancelled when the connection is lost."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        protocol = self.scope.get("extensions", {}).get(PROTOCOL_EXTENSION)
        if protocol is not None:
            protocol.on_lost = future.cancel
        return future
