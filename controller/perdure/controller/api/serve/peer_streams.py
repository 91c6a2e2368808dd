"""Streams to replicas whose nodes are connected to another controller: that controller opens them, and passes them on.

The controllers of one database have a keyring in common. A controller proves with a signature that it belongs to them;
the signature names the controller that is called, and is valid for a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog
from sqlalchemy import Engine
from starlette.websockets import WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from perdure.controller.api.server.sockets import StreamSocket
from perdure.controller.api.tunnel.relay import receive_text, send_frame
from perdure.controller.nodes.frames import InvalidFrame
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.store.records import agent_connections
from perdure.controller.store.records.agent_connections import Place
from perdure.controller.submit.errors import RequestRejected

log = structlog.get_logger(__name__)

PATH = "/peer/v1/streams"
VALID_S, OPEN_TIMEOUT_S, KNOWN_S = 60.0, 10.0, 2.0
_PURPOSE = "peer stream"
_MAX_MESSAGE_BYTES = 128 * 1024
_MAX_QUEUED = 4
_MAX_PORT = 65_535
_UNREACHABLE = (OSError, InvalidHandshake, InvalidURI, ConnectionClosed, TimeoutError, ValueError)
_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""What reading JSON raises that another program has written. `1e999` is too large for an integer."""


class NodeStream(Protocol):
    """A stream to a program on a node, with the interface of a WebSocket of ASGI."""

    async def send_bytes(self, data: bytes) -> None:
        """Raises OSError and others of `upstreams` if the node is lost."""

    async def receive(self) -> MutableMapping[str, Any]:
        """The next message of the node."""


OpenStream = Callable[[Place, int, asyncio.Future[None]], AbstractAsyncContextManager[NodeStream]]
"""Opens a stream to a port of a node, unless the future is done first. Raises RequestRejected, OSError."""


@dataclass(frozen=True)
class Peer:
    """Another controller: its id, where it is reached, and its certificate (PEM), if it has one."""

    id: str
    url: str
    certificate: str


@dataclass(frozen=True)
class PeerStreams:
    """Opens streams to all nodes, and those to this controller's nodes for the others.

    `local`: opens a stream of a node that is connected here. `is_local`: whether a node is. `owner`: this controller.
    """

    database: Engine
    clock: Clock
    keyring: Keyring
    owner: str
    speed: float  # of `clock`
    local: OpenStream
    is_local: Callable[[Place], bool]
    ends_stream: Callable[[str], bool]
    _known: dict[Place, tuple[float, Peer]] = field(default_factory=dict)  # until when, and where

    @contextlib.asynccontextmanager
    async def open(self, place: Place, port: int, gone: asyncio.Future[None]) -> AsyncIterator[NodeStream]:
        """A stream to a port of a node, whichever controller it is connected to. Raises RequestRejected, OSError."""
        peer = None if self.is_local(place) else await self._find(place)
        if peer is None:
            async with self.local(place, port, gone) as stream:
                yield stream
            return
        link = await self._call(peer, place, port, gone)
        try:
            yield _PeerStream(link)
        finally:
            await link.close()

    async def serve(self, socket: StreamSocket, token: str) -> None:
        """Open a stream for another controller, and pass its bytes on until it ends."""
        if not self._is_peer(token):
            await socket.close(1008)
            return
        await socket.accept()
        with contextlib.suppress(OSError, RuntimeError, TimeoutError, WebSocketDisconnect):  # the other one has gone
            try:
                place, port = _parse_request(await receive_text(socket, OPEN_TIMEOUT_S))
                async with self.local(place, port, socket.lost()) as node:
                    await send_frame(socket, {"type": "opened"})
                    await _relay(socket, node, self.ends_stream)
            except RequestRejected as rejected:
                frame = {"type": "error", "message": rejected.message, "fix": rejected.fix, "status": rejected.status}
                await send_frame(socket, frame)
            except InvalidFrame as error:
                log.warning("peer_stream.invalid", error=str(error))
            await socket.close()

    # --- the calling side ---------------------------------------------------------------------------------

    async def _find(self, place: Place) -> Peer | None:
        """The controller that a node is connected to; None if it is this one, or none."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(place)
        if known is not None and now < known[0]:
            return known[1]
        peer = await asyncio.to_thread(self._read_holder, place)
        for old in [one for one, (until, _) in self._known.items() if until <= now]:
            del self._known[old]
        if peer is not None:
            self._known[place] = (now + KNOWN_S, peer)
        return peer

    def _read_holder(self, place: Place) -> Peer | None:
        with self.database.connect() as conn:
            row = agent_connections.holder(conn, place, self.clock.now())
        if row is None or row.id == self.owner:
            return None
        if not row.peer_url:
            raise RequestRejected("the node is connected to a controller of an older version", fix="upgrade it")
        return Peer(row.id, row.peer_url, row.peer_certificate or "")

    async def _call(self, peer: Peer, place: Place, port: int, gone: asyncio.Future[None]) -> ClientConnection:
        """A connection to another controller that has opened the stream. Raises RequestRejected, OSError."""
        opening = asyncio.ensure_future(self._open_at(peer, place, port))
        awaited: list[asyncio.Future[Any]] = [opening, gone]
        try:
            await asyncio.wait(awaited, timeout=2 * OPEN_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _abandon(opening)
            raise
        if not opening.done() or opening.cancelled():
            await _abandon(opening)
            raise OSError("the caller has gone")
        try:
            return opening.result()
        except _UNREACHABLE as error:
            self._known.pop(place, None)
            log.info("peer_stream.not_opened", peer=peer.url, error=repr(error))
            fix = "the controllers of one database must reach each other: see docs/guides/several-controllers.md"
            raise RequestRejected(f"the controller {peer.url} cannot be reached: {error}", fix=fix) from error
        except RequestRejected:
            self._known.pop(place, None)
            raise

    async def _open_at(self, peer: Peer, place: Place, port: int) -> ClientConnection:
        link = await connect(
            peer.url.replace("http", "ws", 1) + PATH,
            additional_headers={"Authorization": f"Bearer {self._token_for(peer)}"},
            ssl=_trusting(peer.certificate) if peer.certificate else None,
            compression=None,
            proxy=None,
            max_size=_MAX_MESSAGE_BYTES,
            max_queue=_MAX_QUEUED,
            open_timeout=OPEN_TIMEOUT_S,
        )
        try:
            (job_id, task_index, generation), rank = place
            await link.send(json.dumps({"place": [job_id, task_index, generation, rank], "port": port}))
            _check_opened(await asyncio.wait_for(link.recv(), OPEN_TIMEOUT_S))
        except BaseException:
            await link.close()
            raise
        return link

    # --- signatures ---------------------------------------------------------------------------------------

    def _token_for(self, peer: Peer) -> str:
        body = f"{peer.id}:{self.clock.now() + VALID_S * self.speed:.0f}"
        return f"{body}:{self.keyring.sign(_PURPOSE, body)}"

    def _is_peer(self, token: str) -> bool:
        match token.split(":"):
            case [owner, until, signature] if owner == self.owner and until.isdecimal():
                is_valid = float(until) >= self.clock.now()
                return is_valid and self.keyring.is_signed(_PURPOSE, f"{owner}:{until}", signature)
        return False


class _PeerStream:
    """A stream that another controller passes on."""

    def __init__(self, link: ClientConnection) -> None:
        self._link = link

    async def send_bytes(self, data: bytes) -> None:
        try:
            await self._link.send(data)
        except ConnectionClosed as error:
            raise OSError("the other controller has ended the stream") from error

    async def receive(self) -> MutableMapping[str, Any]:
        try:
            message = await self._link.recv()
        except ConnectionClosed:
            return {"type": "websocket.disconnect"}
        name = "bytes" if isinstance(message, bytes) else "text"
        return {"type": "websocket.receive", name: message}


async def _relay(peer: StreamSocket, node: NodeStream, ends_stream: Callable[[str], bool]) -> None:
    """Copy in both directions until one side ends. Raises what they raise."""
    request = asyncio.ensure_future(_copy_request(peer, node))
    answer = asyncio.ensure_future(_copy_answer(node, peer, ends_stream))
    both = {request, answer}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for one in both:
            if one.done():
                one.result()
    finally:
        for one in both:
            one.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def _copy_request(peer: StreamSocket, node: NodeStream) -> None:
    while (message := await peer.receive())["type"] != "websocket.disconnect":
        if (data := message.get("bytes")) is not None:
            await node.send_bytes(data)


async def _copy_answer(node: NodeStream, peer: StreamSocket, ends_stream: Callable[[str], bool]) -> None:
    while (message := await node.receive())["type"] != "websocket.disconnect":
        if (data := message.get("bytes")) is not None:
            await peer.send_bytes(data)
        elif ends_stream(message["text"]):
            await peer.send_text(message["text"])
            return


async def _abandon(opening: asyncio.Future[ClientConnection]) -> None:
    """End what opens a connection, and close the connection if it is open already: nobody else has it."""
    opening.cancel()
    (link,) = await asyncio.gather(opening, return_exceptions=True)
    if not isinstance(link, BaseException):
        await link.close()


def _check_opened(text: str | bytes) -> None:
    """Raises RequestRejected if the other controller has not opened the stream, and ValueError if that is no answer."""
    try:
        answer = json.loads(text)
        if answer["type"] == "opened":
            return
        message, fix = str(answer["message"]), str(answer.get("fix") or "")
    except _MALFORMED as error:
        raise ValueError(f"not an answer to a request for a stream: {error!r}") from error
    raise RequestRejected(message, fix=fix)


def _parse_request(text: str) -> tuple[Place, int]:
    """Raises InvalidFrame."""
    try:
        request = json.loads(text)
        job_id, task_index, generation, rank = (int(part) for part in request["place"])
        port = int(request["port"])
    except _MALFORMED as error:
        raise InvalidFrame(f"not a request for a stream: {error!r}") from error
    if not 0 < port <= _MAX_PORT:
        raise InvalidFrame("the port is out of range")
    return ((job_id, task_index, generation), rank), port


def _trusting(certificate: str) -> ssl.SSLContext:
    """Trusts one certificate (PEM) alone, which need not be an authority's, under whatever name. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate)
    return context
