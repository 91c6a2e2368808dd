"""The blocking calls of a node session (database and disk), run in threads so that the event loop never waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from perdure.controller.nodes.connection_records import ConnectionRecords, WelcomeState
from perdure.controller.runtime.batcher import Batcher
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.logs.protocol import LogStore, LogWrite
from perdure.controller.store.records.agent_connections import Place

_LINGER_MAX_BYTES = 2**16
_Call = tuple[Place, str]


class BlockingIo(Protocol):
    """Awaitable forms of blocking calls. Each raises what the blocking call raises."""

    async def append(self, key: AttemptKey, rank: int, offset: int, data: bytes) -> int:
        """`LogStore.append`."""
        ...

    async def mark_connected(self, place: Place, session_id: str) -> tuple[WelcomeState, int]:
        """`ConnectionRecords.mark_connected`, and how many bytes of the node's log are stored."""
        ...

    async def mark_disconnected(self, place: Place, session_id: str) -> bool:
        """`ConnectionRecords.mark_disconnected`."""
        ...


class ThreadPerCall:
    """Runs each call in a thread of its own."""

    def __init__(self, logs: LogStore, presence: ConnectionRecords) -> None:
        self._logs = logs
        self._presence = presence

    async def append(self, key: AttemptKey, rank: int, offset: int, data: bytes) -> int:
        return await asyncio.to_thread(self._logs.append, key, rank, offset, data)

    async def mark_connected(self, place: Place, session_id: str) -> tuple[WelcomeState, int]:
        return await asyncio.to_thread(self._mark_connected, place, session_id)

    def _mark_connected(self, place: Place, session_id: str) -> tuple[WelcomeState, int]:
        return self._presence.mark_connected(place, session_id), self._logs.size(*place)

    async def mark_disconnected(self, place: Place, session_id: str) -> bool:
        return await asyncio.to_thread(self._presence.mark_disconnected, place, session_id)


class Batched:
    """Runs concurrent calls of one kind as a batch: one transaction for all connects, one thread for all log writes."""

    def __init__(self, logs: LogStore, presence: ConnectionRecords) -> None:
        self._logs = logs
        self._presence = presence
        self._log_writes: Batcher[LogWrite, int] = Batcher("logs", logs.append_all, self._linger_s)
        self._connects: Batcher[_Call, tuple[WelcomeState, int]] = Batcher("connects", self._mark_connected_all)
        self._disconnects: Batcher[_Call, bool] = Batcher("disconnects", presence.mark_disconnected_all)

    async def append(self, key: AttemptKey, rank: int, offset: int, data: bytes) -> int:
        return await self._log_writes.submit((key, rank, offset, data))

    async def mark_connected(self, place: Place, session_id: str) -> tuple[WelcomeState, int]:
        return await self._connects.submit((place, session_id))

    async def mark_disconnected(self, place: Place, session_id: str) -> bool:
        return await self._disconnects.submit((place, session_id))

    def _linger_s(self, pieces: Sequence[LogWrite]) -> float:
        """Delay small batches, so that more writes share one transaction; large ones are written without a pause."""
        return self._logs.linger_s if sum(len(piece[3]) for piece in pieces) < _LINGER_MAX_BYTES else 0.0

    def _mark_connected_all(self, calls: Sequence[_Call]) -> list[tuple[WelcomeState, int]]:
        states = self._presence.mark_connected_all(calls)
        sizes = self._logs.sizes([place for place, _ in calls])
        self._logs.prepare([place for (place, _), size in zip(calls, sizes, strict=True) if not size])
        return list(zip(states, sizes, strict=True))
