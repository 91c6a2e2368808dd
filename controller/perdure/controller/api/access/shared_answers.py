"""Lets many viewers of the same thing share one computation. In memory, for one controller.

A hundred browsers that show one list read it again within a moment when a job changes. The first request computes it;
requests that come while nothing has changed get the same answer. While jobs change all the time, an answer is computed
at most every `MIN_INTERVAL_S`, and requests that come meanwhile wait for the next one. So an answer never lacks what
had changed, and was announced, before it was requested.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

MIN_INTERVAL_S = 0.25
MAX_AGE_S = 1.0
"""An answer shows times and costs, and a change may be announced late."""
_MAX_ANSWERS = 100


@dataclass(frozen=True)
class _Answer:
    revision: int
    began_at: float
    task: asyncio.Task[bytes]


class SharedAnswers:
    """On the event loop. `revision`: a number that is different after every change."""

    def __init__(self, revision: Callable[[], int]) -> None:
        self._revision = revision
        self._answers: dict[Hashable, _Answer] = {}

    async def of(self, key: Hashable, compute: Callable[[], Awaitable[bytes]]) -> bytes:
        """The answer to `key`: another request's, or that of `compute`. Raises what `compute` raises.

        `key`: everything that the answer depends on, also what the caller may see.
        """
        loop = asyncio.get_running_loop()
        requested_at = loop.time()
        while (answer := self._answers.get(key)) is not None:
            now = loop.time()
            is_current = answer.revision == self._revision() and now < answer.began_at + MAX_AGE_S
            if is_current or answer.began_at >= requested_at:
                return await asyncio.shield(answer.task)
            if not answer.task.done():
                await asyncio.wait({answer.task})
            elif now < answer.began_at + MIN_INTERVAL_S:
                await asyncio.sleep(answer.began_at + MIN_INTERVAL_S - now)
            else:
                break
        return await asyncio.shield(self._begin(key, compute).task)

    def _begin(self, key: Hashable, compute: Callable[[], Awaitable[bytes]]) -> _Answer:
        now = asyncio.get_running_loop().time()
        if len(self._answers) >= _MAX_ANSWERS:
            self._answers = {k: a for k, a in self._answers.items() if now < a.began_at + MAX_AGE_S}
        task = asyncio.ensure_future(_run(compute))
        answer = self._answers[key] = _Answer(self._revision(), now, task)
        task.add_done_callback(lambda done: self._forget_failure(key, answer, done))
        return answer

    def _forget_failure(self, key: Hashable, answer: _Answer, done: asyncio.Task[bytes]) -> None:
        if (done.cancelled() or done.exception() is not None) and self._answers.get(key) is answer:
            del self._answers[key]


async def _run(compute: Callable[[], Awaitable[bytes]]) -> bytes:
    return await compute()
