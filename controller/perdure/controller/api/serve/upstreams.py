"""Carries the connections of a proxy to the replicas: from a unix socket of this daemon to a stream of a node's agent.

Each slot of the proxy has a socket, and one more holds requests while no replica is ready. Until a stream is open, no
byte of a request has left this daemon. So if a replica cannot be reached, another one is tried, or the request is held
until there is one. On the event loop.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from starlette.websockets import WebSocketDisconnect

from perdure.controller.api.serve.answer_frames import AnswerFraming, error_event
from perdure.controller.api.serve.haproxy_config import HOLD, socket_name
from perdure.controller.api.serve.peer_streams import NodeStream, OpenStream
from perdure.controller.maintenance.serve.proxy_state import ProxyTarget
from perdure.controller.nodes.frames import InvalidFrame
from perdure.controller.submit.errors import RequestRejected

log = structlog.get_logger(__name__)

HOLD_S, MAX_HELD = 600.0, 1000
EVENT_LINGER_S, REFUSAL_WAIT_S = 0.2, 1.0
READ_BYTES = 32 * 1024
_STREAM_LOST = (OSError, WebSocketDisconnect, RuntimeError, TimeoutError)

Parse = Callable[[str], Any]
"""Parses a control frame of a node; raises InvalidFrame."""


@dataclass(eq=False)
class _Carried:
    """A connection of the proxy. `number`: the replica that answers it; None while it is held.

    `was_held`: it came while no replica was ready, so the proxy does not count it as one of the replica's.
    """

    task: asyncio.Task[None]
    was_held: bool
    number: int | None = None
    answers: AnswerFraming = field(default_factory=AnswerFraming)


@dataclass
class _Slot:
    number: int  # of the replica
    server: asyncio.Server


@dataclass(eq=False)
class Upstreams:
    """The sockets of one proxy. `ends_stream`: whether a control frame of a node is the last one."""

    name: str
    folder: Path
    open_stream: OpenStream
    ends_stream: Callable[[str], bool]
    _targets: dict[int, ProxyTarget] = field(default_factory=dict)  # by number
    _slots: dict[int, _Slot] = field(default_factory=dict)  # by slot
    _refusal: str = ""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)  # set, and replaced, by each change
    _carried: set[_Carried] = field(default_factory=set)
    _openings: dict[asyncio.Future[None], int] = field(default_factory=dict)  # streams that are not open yet → replica
    _hold: asyncio.Server | None = None
    _held: dict[asyncio.Future[Any], float] = field(default_factory=dict)  # requests that wait → since when

    async def apply(self, targets: Mapping[int, ProxyTarget], refusal: str) -> None:
        """Serve exactly these targets, by slot. Connections to others are aborted. Raises OSError."""
        if self._hold is None:
            self._hold = await _listen(self.folder / f"{HOLD}.sock", partial(self._serve, number=None))
        self._targets = {target.number: target for target in targets.values()}
        self._refusal = refusal
        numbers = {slot: target.number for slot, target in targets.items()}
        kept = {slot for slot, one in self._slots.items() if numbers.get(slot) == one.number}
        for slot in self._slots.keys() - kept:
            self._close_slot(slot)
        for slot, target in targets.items():
            if slot not in self._slots:
                await self._open_slot(slot, target.number)
        for one in list(self._carried):
            if one.number is not None and one.number not in self._targets:
                one.task.cancel()
        in_rotation = {target.number for target in targets.values() if target.in_rotation}
        for leaves, number in list(self._openings.items()):
            if number not in in_rotation:
                _finish(leaves)
        self._changed.set()
        self._changed = asyncio.Event()

    async def close(self) -> None:
        """Close everything. Connections that are open are aborted."""
        if self._hold is not None:
            self._hold.close()
        for slot in list(self._slots):
            self._close_slot(slot)
        for one in list(self._carried):
            one.task.cancel()

    @property
    def num_held(self) -> int:
        """How many requests wait for a replica."""
        return len(self._held)

    def held_s(self) -> float:
        """For how long the oldest request that waits has been waiting, in seconds; 0 if none waits. From any thread."""
        oldest = min(list(self._held.values()), default=None)
        return 0.0 if oldest is None else time.monotonic() - oldest

    def num_connections(self, number: int) -> int:
        """How many connections of the proxy are open to a replica, used or idle."""
        return sum(one.number == number for one in self._carried)

    def num_were_held(self, number: int) -> int:
        """How many requests a replica answers that were held before."""
        return sum(one.number == number and one.was_held for one in list(self._carried))

    def close_idle(self, number: int) -> None:
        """Close the connections to a replica that the proxy keeps for later requests: it gets no more of them."""
        for one in list(self._carried):
            if one.number == number and not one.was_held:
                one.task.cancel()

    async def _open_slot(self, slot: int, number: int) -> None:
        server = await _listen(self.folder / socket_name(slot), partial(self._serve, number=number))
        self._slots[slot] = _Slot(number, server)

    def _close_slot(self, slot: int) -> None:
        closed = self._slots.pop(slot)
        closed.server.close()

    async def _serve(self, reader: _RequestReader, writer: asyncio.StreamWriter, number: int | None) -> None:
        """Serve a connection of the proxy, at best by the replica `number`."""
        task = asyncio.current_task()
        assert task is not None
        carried = _Carried(task, was_held=number is None)
        self._carried.add(carried)
        is_whole = False
        try:
            is_whole = await self._carry(reader, writer, carried, number)
        except asyncio.CancelledError:
            pass  # the replica is gone, or the proxy: the connection is aborted
        except _STREAM_LOST as error:
            log.debug("upstream.lost", service=self.name, error=repr(error))
        except InvalidFrame as error:
            log.info("upstream.invalid_frame", service=self.name, error=str(error))
        except Exception:  # a bug: it costs this connection alone
            log.exception("upstream.failed", service=self.name)
        finally:
            self._carried.discard(carried)
            if carried.answers.is_between_events and not reader.gone.done():
                _end_with_event(writer, f"replica {carried.number} of {self.name} was lost while it answered")
            elif not is_whole:
                writer.transport.abort()  # the caller must see that its answer is cut
            else:
                writer.close()

    async def _carry(
        self, reader: _RequestReader, writer: asyncio.StreamWriter, carried: _Carried, number: int | None
    ) -> bool:
        """Whether the connection has ended in order."""
        refused: set[int] = set()
        give_up_at = time.monotonic() + HOLD_S
        while not reader.gone.done():
            target = self._choose(number, refused)
            if target is None:
                refused.clear()
                if why := await self._wait_for_target(give_up_at, reader.gone):
                    await _refuse(reader, writer, why)
                    return True
                continue
            leaves = self._when_target_leaves(target.number, reader.gone)
            try:
                async with self.open_stream((target.attempt, 0), target.port, leaves) as node:
                    del self._openings[leaves]
                    carried.number = target.number
                    return await _relay(reader, writer, node, partial(self._copy_answer, carried.answers))
            except RequestRejected as rejected:
                log.info("upstream.not_opened", service=self.name, replica=target.number, why=rejected.message)
                refused.add(target.number)
            except OSError:
                if carried.number is not None or reader.gone.done():
                    raise
                refused.add(target.number)  # it has left the rotation before the stream was open
            finally:
                self._openings.pop(leaves, None)
        return False

    def _when_target_leaves(self, number: int, gone: asyncio.Future[None]) -> asyncio.Future[None]:
        """Done when the caller has gone, or when the replica gets no more requests: then another one is tried."""
        leaves: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone.add_done_callback(lambda _: _finish(leaves))
        self._openings[leaves] = number
        return leaves

    def _choose(self, number: int | None, refused: set[int]) -> ProxyTarget | None:
        """The replica for a connection: the one that the proxy chose, or another one that could not be reached yet."""
        chosen = self._targets.get(number) if number is not None and number not in refused else None
        if chosen is not None:
            return chosen
        others = [one for one in self._targets.values() if one.in_rotation and one.number not in refused]
        return min(others, key=lambda one: self.num_connections(one.number), default=None)

    async def _copy_answer(self, answers: AnswerFraming, node: NodeStream, writer: asyncio.StreamWriter) -> bool:
        """True when the program has closed the connection; False if the node was lost."""
        while True:
            message = await node.receive()
            if message["type"] == "websocket.disconnect":
                return False
            if (data := message.get("bytes")) is not None:
                answers.feed(data)
                writer.write(data)
                await writer.drain()
            elif self.ends_stream(message["text"]):
                return True

    async def _wait_for_target(self, give_up_at: float, gone: asyncio.Future[None]) -> str:
        """Wait until a replica may be tried. Returns why the request is refused instead; "" if it is not."""
        if self._refusal:
            return self._refusal
        if len(self._held) >= MAX_HELD:
            return f"no replica is ready, and {MAX_HELD} requests wait already"
        left_s = give_up_at - time.monotonic()
        if left_s <= 0:
            return f"no replica became ready within {HOLD_S:.0f} s"
        changed = asyncio.ensure_future(self._changed.wait())
        self._held[changed] = give_up_at - HOLD_S
        awaited: list[asyncio.Future[Any]] = [changed, gone]
        try:
            await asyncio.wait(awaited, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            del self._held[changed]
        return ""


class _RequestReader(asyncio.StreamReader):
    """What a proxy sends. `gone`: done when it sends no more, even if nobody has read the rest yet."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def feed_eof(self) -> None:
        super().feed_eof()
        self._close()

    def set_exception(self, exc: BaseException) -> None:
        super().set_exception(exc)  # type: ignore[arg-type]  # of typeshed
        self._close()

    def _close(self) -> None:
        _finish(self.gone)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _listen(path: Path, serve: Callable[[Any, asyncio.StreamWriter], Awaitable[None]]) -> asyncio.Server:
    """A server at a unix socket. Raises OSError."""
    path.unlink(missing_ok=True)
    loop = asyncio.get_running_loop()
    return await loop.create_unix_server(lambda: asyncio.StreamReaderProtocol(_RequestReader(), serve), str(path))


async def _relay(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    node: NodeStream,
    copy_answer: Callable[[NodeStream, asyncio.StreamWriter], Coroutine[Any, Any, bool]],
) -> bool:
    """Copy in both directions until one side ends. Whether the program on the node has closed its side."""
    from_node = asyncio.ensure_future(copy_answer(node, writer))
    from_proxy = asyncio.ensure_future(_copy_request(reader, node))
    both = {from_node, from_proxy}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for one in both:
            if one.done():
                one.result()
        return from_node.done() and from_node.result()
    finally:
        for one in both:
            one.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def _copy_request(reader: asyncio.StreamReader, node: NodeStream) -> None:
    while data := await reader.read(READ_BYTES):
        await node.send_bytes(data)


def _end_with_event(writer: asyncio.StreamWriter, why: str) -> None:
    """End a stream of events with an error, and cut it: it is not whole.

    The proxy throws away what it has not passed on when it sees the end, so that comes a moment later.
    """
    writer.write(error_event(why, "replica_lost"))
    asyncio.get_running_loop().call_later(EVENT_LINGER_S, writer.close)


async def _refuse(reader: _RequestReader, writer: asyncio.StreamWriter, why: str) -> None:
    """Answer with 503. To a proxy that is still sending the request, a closed connection would be no answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(REFUSAL_WAIT_S):
            await reader.read(READ_BYTES)
    body = json.dumps({"error": {"message": why, "type": "service_unavailable"}}).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 5\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    writer.write_eof()
    await asyncio.wait([reader.gone], timeout=REFUSAL_WAIT_S)
