"""Does together, in one thread, what many ask for one by one: what has come in meanwhile is done in one go."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

_MOST_AT_ONCE = 256


class Gathering(Generic[Asked, Answer]):
    """`do` gets what was asked, and gives as many answers in the same order; an exception among them is raised where
    its answer is awaited. What `do` raises itself is raised for all. Its thread begins with the first that is asked,
    and ends with the process.

    `pause_s`: of what is begun to be done, how long until the next is begun. What comes meanwhile is gathered; who asks
    after that waits for nothing.
    """

    def __init__(
        self,
        name: str,
        do: Callable[[Sequence[Asked]], Sequence[Answer | Exception]],
        pause_s: Callable[[Sequence[Asked]], float] = lambda _: 0.0,
    ) -> None:
        self._name = name
        self._do = do
        self._pause_s = pause_s
        self._never = threading.Event()
        self._waiting: queue.SimpleQueue[tuple[Asked, asyncio.Future[Answer]]] = queue.SimpleQueue()
        self._beginning = threading.Lock()
        self._has_begun = False

    async def ask(self, asked: Asked) -> Answer:
        if not self._has_begun:
            self._begin()
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.put((asked, answer))
        return await answer

    def _begin(self) -> None:
        with self._beginning:
            if not self._has_begun:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._has_begun = True

    def _run(self) -> None:
        next_at = 0.0
        while True:
            taken = [self._waiting.get()]
            if (early_s := next_at - time.monotonic()) > 0.0:
                self._never.wait(early_s)
            while len(taken) < _MOST_AT_ONCE and not self._waiting.empty():
                taken.append(self._waiting.get())
            answers: Sequence[Answer | Exception]
            asked = [one for one, _ in taken]
            next_at = time.monotonic() + self._pause_s(asked)
            try:
                answers = self._do(asked)
            except Exception as error:  # noqa: BLE001 - raised where it is awaited
                answers = [error] * len(taken)
            told: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Answer], Answer | Exception]]] = {}
            for (_, future), answer in zip(taken, answers, strict=True):
                told.setdefault(future.get_loop(), []).append((future, answer))
            for loop, those in told.items():
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(_tell, those)


def _tell(told: Sequence[tuple[asyncio.Future[Answer], Answer | Exception]]) -> None:
    for future, answer in told:
        if future.done():
            continue  # whoever asked has gone
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
