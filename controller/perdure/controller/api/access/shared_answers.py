"""Lets many viewers of the same thing share one computation. In memory, for one controller.

A hundred browsers that show one list read it again within a moment when a job changes. The first request computes it;
requests that come while nothing has changed get the same answer. While jobs change all the time, an answer is computed
at most every `MIN_INTERVAL_S`, and requests that come meanwhile wait for the next one. So an answer never lacks what
had changed, and was announced, before it was requested.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

MIN_INTERVAL_S = 0.25
MAX_AGE_S = 1.0
"""An answer shows times and costs, and a change may be announced late."""
_MAX_ANSWERS, _MAX_ANSWER_BYTES = 100, 16 * 2**20


@dataclass(frozen=True)
class _Answer:
    revision: int
    began_at: float
    task: asyncio.Task[bytes]

    @property
    def num_bytes(self) -> int:
        """0 unless it was computed."""
        has_result = self.task.done() and not self.task.cancelled() and self.task.exception() is None
        return len(self.task.result()) if has_result else 0


class SharedAnswers:
    """On the event loop. `revision`: a number that is different after every change."""

    def __init__(self, revision: Callable[[], int]) -> None:
        self._revision = revision
        self._answers: OrderedDict[Hashable, _Answer] = OrderedDict()  # the one used last is the last

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
                self._answers.move_to_end(key)
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
        for other in [k for k, a in self._answers.items() if a.task.done() and now >= a.began_at + MAX_AGE_S]:
            del self._answers[other]
        task = asyncio.ensure_future(_run(compute))
        answer = self._answers[key] = _Answer(self._revision(), now, task)
        self._answers.move_to_end(key)
        task.add_done_callback(lambda done: self._end(key, answer, done))
        self._drop_unused()
        return answer

    def _end(self, key: Hashable, answer: _Answer, done: asyncio.Task[bytes]) -> None:
        """Forget an answer that has failed, or others if all have become too large."""
        if (done.cancelled() or done.exception() is not None) and self._answers.get(key) is answer:
            del self._answers[key]
        self._drop_unused()

    def _drop_unused(self) -> None:
        """Drop those that were not used for longest. Requests that wait for one of them still get it."""
        sizes = {key: answer.num_bytes for key, answer in self._answers.items()}
        total = sum(sizes.values())
        while len(self._answers) > _MAX_ANSWERS or total > _MAX_ANSWER_BYTES:
            key, _ = self._answers.popitem(last=False)
            total -= sizes[key]


async def _run(compute: Callable[[], Awaitable[bytes]]) -> bytes:
    return await compute()
