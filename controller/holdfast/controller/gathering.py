"""Does together, in one thread, what many ask for one by one: what has come in meanwhile is done in one go."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

_MOST_AT_ONCE = 256


class Gathering(Generic[Asked, Answer]):
    """`do` gets what was asked, and gives as many answers in the same order; an exception among them is raised where
    its answer is awaited. What `do` raises itself is raised for all. Used from one event loop; its thread begins with
    the first that is asked, and ends with the process."""

    def __init__(self, name: str, do: Callable[[Sequence[Asked]], Sequence[Answer | Exception]]) -> None:
        self._name = name
        self._do = do
        self._waiting: queue.SimpleQueue[tuple[Asked, asyncio.Future[Answer]]] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def ask(self, asked: Asked) -> Answer:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            threading.Thread(target=self._run, args=(self._loop,), name=self._name, daemon=True).start()
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting.put((asked, answer))
        return await answer

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            taken = [self._waiting.get()]
            while len(taken) < _MOST_AT_ONCE and not self._waiting.empty():
                taken.append(self._waiting.get())
            answers: Sequence[Answer | Exception]
            try:
                answers = self._do([asked for asked, _ in taken])
            except Exception as error:  # noqa: BLE001 - raised where it is awaited
                answers = [error] * len(taken)
            try:
                loop.call_soon_threadsafe(_tell, [future for _, future in taken], answers)
            except RuntimeError:  # the loop has ended
                return


def _tell(futures: Sequence[asyncio.Future[Answer]], answers: Sequence[Answer | Exception]) -> None:
    for future, answer in zip(futures, answers, strict=True):
        if future.done():
            continue  # whoever asked has gone
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
