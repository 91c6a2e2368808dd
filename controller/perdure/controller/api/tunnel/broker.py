"""Connects users with nodes: it asks a node to open a stream, and joins the two connections.

A node can open no stream by itself: the id of a stream is random, is sent to one node, and is valid once, for some
seconds, with the token and the rank of that node.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import structlog
from starlette.websockets import WebSocketDisconnect

from perdure.controller.api.access.audit_log import record
from perdure.controller.api.access.permissions import Caller
from perdure.controller.api.context import ApiContext
from perdure.controller.api.server.sockets import StreamSocket
from perdure.controller.api.tunnel import names
from perdure.controller.api.tunnel.audit import EntryAudit
from perdure.controller.api.tunnel.names import NamedNode
from perdure.controller.api.tunnel.relay import receive_text, relay, send_frame
from perdure.controller.api.tunnel.stream_frames import (
    ErrorFrame,
    ExitFrame,
    OpenedFrame,
    OpenFrame,
    StreamKind,
    parse_from_node,
    parse_from_user,
    parse_open,
)
from perdure.controller.nodes.frames import InvalidFrame
from perdure.controller.runtime.security.host_keys import derive_host_key
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.records import agent_connections
from perdure.controller.store.records.agent_connections import Place
from perdure.controller.submit.errors import RequestRejected

log = structlog.get_logger(__name__)

MAX_STREAMS_PER_NODE, MAX_STREAMS = 32, 1000
_CHECK_S = 1.0  # how often it is checked that a user's token is still valid
MAX_SERVICE_STREAMS_PER_NODE, MAX_SERVICE_STREAMS = 2000, 10_000  # with those of users
SERVICE_KIND = "service"
OPEN_TIMEOUT_S = 10.0  # for the first frame, for the node's call, and for its answer
# Of an error frame. MISDIRECTED: another controller holds the node's connection, so a new call may reach it.
MISDIRECTED, CONFLICT, TOO_MANY, TIMED_OUT, UNAVAILABLE_STATUS = 421, 409, 429, 504, 503


@dataclass(eq=False, slots=True)
class _Expected:
    """A stream that a node was asked to open."""

    place: Place
    #: The node's connection, once it has called.
    socket: asyncio.Future[StreamSocket]
    #: Set when the stream has ended. The node's connection is closed then.
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class StreamBroker:
    """The streams that pass through this daemon."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._audit = EntryAudit(context.inbox, context.clock)
        self._expected: dict[str, _Expected] = {}
        self._open: Counter[Place] = Counter()  # streams by node

    async def serve_user(self, socket: StreamSocket, caller: Caller) -> None:
        """Serve a user, who is authenticated, until the stream ends, or the user's token is revoked or expires."""
        await socket.accept()
        with contextlib.suppress(OSError, WebSocketDisconnect, RuntimeError):  # the user has gone
            try:
                await self._serve_user(socket, caller)
            except RequestRejected as rejected:
                await _send_error(socket, rejected)
            except InvalidFrame as error:
                await _send_error(socket, RequestRejected(str(error)))
            except TimeoutError:
                await _send_error(socket, RequestRejected("the stream was silent for too long", status=TIMED_OUT))
            except UNAVAILABLE as error:
                reason = f"the controller's database is unavailable: {error}"
                await _send_error(socket, RequestRejected(reason, status=UNAVAILABLE_STATUS))
            await socket.close()

    async def serve_node(self, socket: StreamSocket, place: Place, stream_id: str) -> bool:
        """Take over a node's connection until the stream ends. False, at once, if no such stream is expected of it."""
        expected = self._expected.get(stream_id)
        if expected is None or expected.place != place or expected.socket.done():
            return False
        await socket.accept()
        if expected.socket.done():
            await socket.close()
            return True
        expected.socket.set_result(socket)
        await expected.ended.wait()
        with contextlib.suppress(OSError, WebSocketDisconnect, RuntimeError):
            await socket.close()
        return True

    async def _serve_user(self, user: StreamSocket, caller: Caller) -> None:
        request = parse_open(await receive_text(user, OPEN_TIMEOUT_S))
        named = await asyncio.to_thread(self._resolve, request.name, caller.enters)
        async with self._stream(named, user.lost(), MAX_STREAMS_PER_NODE, MAX_STREAMS) as node:
            await _begin(node, named, self._request_frame(request, named))
            if self._audit.record(named, request.kind, caller.user_for(request.user)):
                await asyncio.to_thread(record, caller, "node.enter", named.name, how=str(request.kind))
            await send_frame(user, self._opened_frame(request, named))
            with self._recorded_use(request.kind, named) as on_data:
                await while_valid(caller, self._relay(user, node, named, on_data))

    @contextlib.contextmanager
    def _recorded_use(self, kind: StreamKind, named: NamedNode) -> Iterator[Callable[[], None]]:
        """Record the use of the machine while the stream is open. Yields what to call when bytes pass."""
        activity, clock, job_id = self._context.stream_activity, self._context.clock, named.job_id
        if kind is StreamKind.PORT:
            yield lambda: activity.used(job_id, clock.now())
            return
        activity.entered(job_id)
        try:
            yield lambda: None
        finally:
            activity.left(job_id, clock.now())

    async def _relay(
        self, user: StreamSocket, node: StreamSocket, named: NamedNode, on_data: Callable[[], None]
    ) -> None:
        def parse_node(text: str) -> Any:
            try:
                return parse_from_node(text)
            except InvalidFrame as error:
                self._context.sessions.rejected_frames.count(named.place, str(error))
                raise

        last = await relay(user, node, parse_from_user, parse_node, on_data)
        if last is None:
            log.debug("stream.ended", place=named.place)

    def _resolve(self, name: str, user: str | None) -> NamedNode:
        with self._context.database.connect() as conn:
            return names.resolve(conn, name, user)

    def is_connected(self, place: Place) -> bool:
        """Whether a node is connected to this daemon. On the event loop."""
        return any(one.place == place for one in self._context.sessions.connections())

    @contextlib.asynccontextmanager
    async def open_service(self, place: Place, port: int, gone: asyncio.Future[None]) -> AsyncIterator[StreamSocket]:
        """A stream to the port of a replica. `gone`: done when the caller has gone. Raises RequestRejected, OSError."""
        named = NamedNode(names.node_name(place[0][0], place[1]), place, "", 1, "")
        async with self._stream(named, gone, MAX_SERVICE_STREAMS_PER_NODE, MAX_SERVICE_STREAMS) as node:
            await _begin(node, named, {"kind": SERVICE_KIND, "port": port})
            yield node

    @contextlib.asynccontextmanager
    async def _stream(
        self, named: NamedNode, gone: asyncio.Future[None], max_of_node: int, max_in_all: int
    ) -> AsyncIterator[StreamSocket]:
        """A new stream of a node. Raises RequestRejected, OSError once `gone` is done."""
        place = named.place
        if self._open[place] >= max_of_node or self._open.total() >= max_in_all:
            raise RequestRejected(
                f"too many streams are open: at most {max_of_node} to a node, and {max_in_all} in all",
                where=named.name,
                fix="close some of them",
                status=TOO_MANY,
            )
        stream_id = secrets.token_hex(16)
        expected = _Expected(place, asyncio.get_running_loop().create_future())
        self._open[place] += 1
        self._expected[stream_id] = expected
        try:
            connection = next((one for one in self._context.sessions.connections() if one.place == place), None)
            if connection is None or connection.closed:
                raise await asyncio.to_thread(self._not_connected, named)
            connection.send({"type": "open_stream", "id": stream_id})
            awaited: list[asyncio.Future[Any]] = [expected.socket, gone]
            await asyncio.wait(awaited, timeout=OPEN_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise OSError("the user has gone")
            if not expected.socket.done():
                raise _no_call(named)
            del self._expected[stream_id]
            yield expected.socket.result()
        finally:
            self._expected.pop(stream_id, None)
            expected.socket.cancel()
            expected.ended.set()
            self._open -= Counter({place: 1})

    def _not_connected(self, named: NamedNode) -> RequestRejected:
        """Why a node that is not connected here cannot be reached."""
        with self._context.database.connect() as conn:
            elsewhere = agent_connections.connected_nodes(conn, [named.job_id], self._context.clock.now())
        if named.place in elsewhere:
            return RequestRejected(
                f"{named.name} is connected to another controller",
                where=named.name,
                fix="call again: the load balancer must be able to choose another controller for every connection",
                status=MISDIRECTED,
            )
        return RequestRejected(
            f"{named.name} is not connected now: its machine is starting, or has lost the network",
            where=named.name,
            fix=f"try again; `perdure jobs show {named.job_id}` tells its state",
            status=CONFLICT,
        )

    def _request_frame(self, request: OpenFrame, named: NamedNode) -> dict[str, Any]:
        """What the node needs to know to open the stream."""
        match request.kind:
            case StreamKind.EXEC:
                terminal = {"tty": request.tty, "term": request.term, "rows": request.rows, "columns": request.columns}
                return {"kind": "exec", "argv": request.argv, **terminal}
            case StreamKind.SSH:
                key = derive_host_key(self._context.keyring, self._context.controller_id, named.host)
                return {"kind": "ssh", "public_key": request.public_key, "host_key": key.private}
            case StreamKind.PORT:
                return {"kind": "port", "port": request.port}

    def _opened_frame(self, request: OpenFrame, named: NamedNode) -> dict[str, Any]:
        (job_id, task_index, generation), rank = named.place
        place = {"job_id": job_id, "task_index": task_index, "generation": generation, "rank": rank}
        frame: dict[str, Any] = {"type": "opened", "name": named.name, **place}
        if request.kind is StreamKind.SSH:
            frame["user"] = names.login_user(named.cloud)
            frame["host_key"] = derive_host_key(self._context.keyring, self._context.controller_id, named.host).public
        return frame


async def while_valid(caller: Caller, stream: Coroutine[Any, Any, None]) -> None:
    """Await the stream as long as the caller's token is valid. Raises what the stream raises, and RequestRejected."""
    running = asyncio.create_task(stream)
    try:
        while not running.done():
            if not caller.is_valid():
                raise RequestRejected("your token was revoked, or has expired", where="Authorization", status=401)
            await asyncio.wait([running], timeout=_CHECK_S)
        running.result()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def ends_stream(text: str) -> bool:
    """Whether a control frame of a node is its last one. Raises InvalidFrame."""
    return isinstance(parse_from_node(text), ExitFrame | ErrorFrame)


async def _begin(node: StreamSocket, named: NamedNode, request: dict[str, Any]) -> None:
    """Tell a node what its stream is for, and wait until it has begun. Raises RequestRejected."""
    await send_frame(node, request)
    answer = await _answer(node, named)
    if isinstance(answer, ErrorFrame):
        raise RequestRejected(answer.message, where=named.name, fix=answer.fix, status=CONFLICT)


async def _answer(node: StreamSocket, named: NamedNode) -> OpenedFrame | ErrorFrame:
    try:
        answer = parse_from_node(await receive_text(node, OPEN_TIMEOUT_S))
    except (TimeoutError, OSError):
        raise _no_call(named) from None
    if not isinstance(answer, OpenedFrame | ErrorFrame):
        raise RequestRejected(f"{named.name} has answered something else than it was asked", status=CONFLICT)
    return answer


def _no_call(named: NamedNode) -> RequestRejected:
    return RequestRejected(
        f"{named.name} did not open the stream within {OPEN_TIMEOUT_S:.0f} s",
        where=named.name,
        fix="try again; its agent may be of an older version, or its machine may be going away",
        status=TIMED_OUT,
    )


async def _send_error(socket: StreamSocket, rejected: RequestRejected) -> None:
    await send_frame(
        socket,
        {
            "type": "error",
            "status": rejected.status,
            "message": rejected.message,
            "where": rejected.where,
            "fix": rejected.fix,
        },
    )
