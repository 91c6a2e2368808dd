"""Appends what many nodes print, in one thread: what has come in meanwhile is written, and answered, in one go."""

from __future__ import annotations

import asyncio
import queue
import threading

from holdfast.controller.keyring import AttemptKey
from holdfast.controller.nodelogs import Logs

_MOST_AT_ONCE = 256

_Asked = tuple[AttemptKey, int, int, bytes, "asyncio.Future[int]"]
_Answered = tuple["asyncio.Future[int]", "int | OSError"]


class LogWriter:
    """Appends to `logs`, from one event loop. Its thread begins with the first bytes, and ends with the process."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._asked: queue.SimpleQueue[_Asked] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def append(self, key: AttemptKey, rank: int, offset: int, data: bytes) -> int:
        """As `Logs.append`. Raises OSError."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            threading.Thread(target=self._run, args=(self._loop,), name="logs", daemon=True).start()
        answer: asyncio.Future[int] = self._loop.create_future()
        self._asked.put((key, rank, offset, data, answer))
        return await answer

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            answered = [self._write(self._asked.get())]
            while not self._asked.empty() and len(answered) < _MOST_AT_ONCE:
                answered.append(self._write(self._asked.get()))
            try:
                loop.call_soon_threadsafe(_tell, answered)
            except RuntimeError:  # the loop has ended
                return

    def _write(self, asked: _Asked) -> _Answered:
        key, rank, offset, data, answer = asked
        try:
            return answer, self._logs.append(key, rank, offset, data)
        except OSError as error:
            return answer, error


def _tell(answered: list[_Answered]) -> None:
    for answer, result in answered:
        if answer.done():
            continue  # whoever asked has gone
        if isinstance(result, OSError):
            answer.set_exception(result)
        else:
            answer.set_result(result)
