"""Copies frames between a user's and a node's WebSocket until one of them ends.

Each direction reads the next message only when the last one could be sent, so a slow reader stops its sender.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from perdure.controller.api.server.sockets import StreamSocket
from perdure.controller.api.tunnel.stream_frames import ErrorFrame, ExitFrame, check_data
from perdure.controller.nodes.idle_connection_timer import IdleConnectionTimer

# A client sends a ping every 15 s.
IDLE_TIMEOUT_S = 60.0


async def relay(
    user: StreamSocket,
    node: StreamSocket,
    parse_user: Callable[[str], Any],
    parse_node: Callable[[str], Any],
    on_data: Callable[[], None],
) -> ExitFrame | ErrorFrame | None:
    """Returns the node's last frame, once it was sent to the user; None if the user or the node has gone.

    `on_data` is called for each message with bytes, in either direction.

    Raises InvalidFrame if one of them breaks the protocol, TimeoutError if one of them is silent, and OSError.
    """
    directions = {
        asyncio.create_task(_copy(user, node, parse_user, on_data)),
        asyncio.create_task(_copy(node, user, parse_node, on_data)),
    }
    try:
        done, _ = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        return next((result for task in done if (result := task.result()) is not None), None)
    finally:
        for task in directions:
            task.cancel()
        await asyncio.gather(*directions, return_exceptions=True)


async def receive_text(socket: StreamSocket, timeout_s: float) -> str:
    """The next message, which must be text. Raises OSError if the other side has gone, TimeoutError."""
    async with asyncio.timeout(timeout_s):
        message = await socket.receive()
    if message["type"] == "websocket.disconnect" or message.get("text") is None:
        raise OSError("the other side has sent no text")
    text: str = message["text"]
    return text


async def send_frame(socket: StreamSocket, frame: dict[str, Any]) -> None:
    await socket.send_text(json.dumps(frame, allow_nan=False))


async def _copy(
    source: StreamSocket, target: StreamSocket, parse: Callable[[str], Any], on_data: Callable[[], None]
) -> ExitFrame | ErrorFrame | None:
    loop = asyncio.get_running_loop()
    began_at = loop.time()

    def last_received_at() -> float:
        return max(began_at, float(source.last_received_at))

    async with IdleConnectionTimer(last_received_at, IDLE_TIMEOUT_S) as idle:
        while True:
            idle.suspended = False
            message = await source.receive()
            began_at, idle.suspended = loop.time(), True
            if message["type"] == "websocket.disconnect":
                return None
            if (data := message.get("bytes")) is not None:
                on_data()
                await target.send_bytes(check_data(data))
                continue
            frame = parse(message["text"])
            await send_frame(target, asdict(frame))
            if isinstance(frame, ExitFrame | ErrorFrame):
                return frame
