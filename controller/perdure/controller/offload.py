"""What the channel has done off the event loop: whatever asks a database or a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from perdure.controller.attendance import Arrival, Attendance
from perdure.controller.gathering import Gathering
from perdure.controller.keyring import AttemptKey
from perdure.controller.nodelogs import Logs, Piece
from perdure.controller.store.connections import Place

_MUCH_BYTES = 2**16
_Call = tuple[Place, str]


class Offload(Protocol):
    """Each call is awaited on the event loop, and raises what it raises where it is done."""

    async def append(self, key: AttemptKey, rank: int, offset: int, data: bytes) -> int:
        """`Logs.append`."""
        ...

    async def arrive(self, place: Place, token: str) -> tuple[Arrival, int]:
        """`Attendance.arrive`, and how many bytes are kept of the node's log."""
        ...

    async def leave(self, place: Place, token: str) -> bool:
        """`Attendance.leave`."""
        ...


class Singly:
    """Each call in a thread of its own."""

    def __init__(self, logs: Logs, attendance: Attendance) -> None:
        self._logs = logs
        self._attendance = attendance

    async def append(self, key: AttemptKey, rank: int, offset: int, data: bytes) -> int:
        return await asyncio.to_thread(self._logs.append, key, rank, offset, data)

    async def arrive(self, place: Place, token: str) -> tuple[Arrival, int]:
        return await asyncio.to_thread(self._arrive, place, token)

    def _arrive(self, place: Place, token: str) -> tuple[Arrival, int]:
        return self._attendance.arrive(place, token), self._logs.size(*place)

    async def leave(self, place: Place, token: str) -> bool:
        return await asyncio.to_thread(self._attendance.leave, place, token)


class Together:
    """Calls that come in at the same time are done together: one transaction for all who arrive, one thread for all
    that is printed."""

    def __init__(self, logs: Logs, attendance: Attendance) -> None:
        self._logs = logs
        self._attendance = attendance
        self._pieces: Gathering[Piece, int] = Gathering("logs", logs.append_all, self._pause_s)
        self._arrivals: Gathering[_Call, tuple[Arrival, int]] = Gathering("arrivals", self._arrive_all)
        self._leaves: Gathering[_Call, bool] = Gathering("leaves", attendance.leave_all)

    async def append(self, key: AttemptKey, rank: int, offset: int, data: bytes) -> int:
        return await self._pieces.ask((key, rank, offset, data))

    async def arrive(self, place: Place, token: str) -> tuple[Arrival, int]:
        return await self._arrivals.ask((place, token))

    async def leave(self, place: Place, token: str) -> bool:
        return await self._leaves.ask((place, token))

    def _pause_s(self, pieces: Sequence[Piece]) -> float:
        """Short lines may wait a little for others, where each write costs much; who has more to say is kept busy."""
        return self._logs.gather_s if sum(len(piece[3]) for piece in pieces) < _MUCH_BYTES else 0.0

    def _arrive_all(self, calls: Sequence[_Call]) -> list[tuple[Arrival, int]]:
        arrivals = self._attendance.arrive_all(calls)
        return list(zip(arrivals, self._logs.sizes([place for place, _ in calls]), strict=True))
