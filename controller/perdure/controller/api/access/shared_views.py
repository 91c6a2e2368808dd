"""Lets all readers of a log share its index, which one of them at a time continues. In memory, for one controller.

The first reading of a log may take minutes. It goes on in steps, each of which takes a work slot of the user whose
request began it and a thread of those that all routes share. Requests that wait for it take neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

from fastapi.concurrency import run_in_threadpool

from perdure.controller.api.access.work_slots import WorkSlots
from perdure.controller.store.logs.job_transcript import JobTranscript
from perdure.controller.store.logs.protocol import LogStore
from perdure.controller.store.logs.transcript_index import TranscriptIndex, TranscriptIndexes, TranscriptView
from perdure.controller.submit.errors import Overloaded

Result = TypeVar("Result")


@dataclass(frozen=True)
class _Reading:
    """What is being read of a log, on behalf of `user`. It shows all that was there at `began_at`."""

    user: str
    began_at: float
    task: asyncio.Task[tuple[TranscriptView, JobTranscript]]


class SharedViews:
    """On the event loop."""

    def __init__(self, logs: LogStore, slots: WorkSlots) -> None:
        self._logs = logs
        self._slots = slots
        self._indexes = TranscriptIndexes()
        self._readings: dict[Hashable, _Reading] = {}

    async def apply(
        self, unread: JobTranscript, user: str, function: Callable[[TranscriptView], Awaitable[Result]]
    ) -> tuple[Result, TranscriptView, JobTranscript]:
        """What `function` returns of the transcript with all that was there when it was requested, that transcript, and
        one that continues after it. If the log was deleted since it was indexed, it is indexed again.

        `unread`: one from which nothing was read yet. Raises what the database, the logs and `function` raise,
        FileNotFoundError if the log is being deleted, and Overloaded.
        """
        try:
            return await self._apply_once(unread, user, function)
        except FileNotFoundError:
            self._indexes.forget(unread.key)
        return await self._apply_once(unread, user, function)

    async def _apply_once(
        self, unread: JobTranscript, user: str, function: Callable[[TranscriptView], Awaitable[Result]]
    ) -> tuple[Result, TranscriptView, JobTranscript]:
        view, rest = await self._view(unread, user)
        return await function(view), view, rest

    async def _view(self, unread: JobTranscript, user: str) -> tuple[TranscriptView, JobTranscript]:
        requested_at = asyncio.get_running_loop().time()
        while True:
            reading = self._readings.get(unread.key)
            if reading is None:
                reading = self._begin(unread, user)
            elif reading.began_at < requested_at:
                await asyncio.wait({reading.task})
                continue
            try:
                view, rest = await asyncio.shield(reading.task)
            except Overloaded:
                if reading.user == user:
                    raise
            else:
                return view, rest.copy()

    def _begin(self, unread: JobTranscript, user: str) -> _Reading:
        index = self._indexes.get(unread.key) or TranscriptIndex(self._logs, unread.copy())
        task = asyncio.ensure_future(self._read(index, user))
        reading = self._readings[unread.key] = _Reading(user, asyncio.get_running_loop().time(), task)
        task.add_done_callback(lambda done: self._end(unread.key, index, done))
        return reading

    def _end(
        self, key: Hashable, index: TranscriptIndex, done: asyncio.Task[tuple[TranscriptView, JobTranscript]]
    ) -> None:
        del self._readings[key]
        self._indexes.keep(key, index)
        if not done.cancelled():
            done.exception()  # raised by those that still wait

    async def _read(self, index: TranscriptIndex, user: str) -> tuple[TranscriptView, JobTranscript]:
        is_left_over = index.is_reading  # by a user whose slots were busy: it lacks what came since
        while True:
            async with self._slots.of(user):
                read = await run_in_threadpool(index.read_step)
            if read is not None and not is_left_over:
                return read
            is_left_over = is_left_over and read is None
