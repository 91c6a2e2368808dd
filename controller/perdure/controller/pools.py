"""Runs calls of clouds in threads: a lane per cloud. Its threads are bounded, and made when there is work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from perdure.controller.bounds import Bounds
from perdure.controller.caps import Caps, Standing
from perdure.controller.dispatch import Answered, Call
from perdure.controller.keyring import AttemptKey
from perdure.controller.lanes import Lane, Launch, Verdict

log = structlog.get_logger(__name__)

LOOK_S = 1.0

Look = Callable[[Collection[AttemptKey]], Standing]


@dataclass(frozen=True, eq=False)
class _Waiting:
    call: Call
    done: Future[Answered]


class Pools:
    """The lane of each cloud, made when first used. Safe to use from any thread.

    `look`: reads what the database knows, for the bounds on machines and on running jobs; it is told which launches it
    is asked about, and may raise what the database raises. Where there are such bounds, `update` has to be called
    before anything is launched, and then every `LOOK_S`.
    """

    def __init__(self, bounds: Bounds, look: Look) -> None:
        self._bounds = bounds
        self._look = look
        self._lock = threading.Lock()
        self._pools: dict[str, Pool] = {}
        self._caps = Caps(bounds)

    def __call__(self, cloud: str) -> Pool:
        with self._lock:
            if cloud not in self._pools:
                self._pools[cloud] = Pool(cloud, self._bounds.in_flight(cloud), self._caps, self._lock)
            return self._pools[cloud]

    def update(self) -> None:
        """Count again what there is, and begin what has room now. Raises what `look` raises."""
        with self._lock:
            mark, begun = self._caps.mark(), frozenset(self._caps.begun)
        standing = self._look(begun)
        with self._lock:
            self._caps.update(standing, mark)
            for pool in self._pools.values():
                pool.begin_what_may()

    def why_waiting(self, job_id: int, task: int) -> str | None:
        """Why a launch of the job's task is held back; None where none is."""
        with self._lock:
            for cloud, pool in self._pools.items():
                if (launch := pool.waiting.get((job_id, task))) is not None:
                    return self._caps.why_not(cloud, launch)
        return None

    def shutdown(self) -> None:
        """Begin nothing more, and wait for what is under way."""
        for pool in list(self._pools.values()):
            pool.shutdown()


class Pool:
    """One cloud's threads. `waiting`: launches that have not begun, the newest of each job's task."""

    def __init__(self, cloud: str, most: int, caps: Caps, lock: threading.Lock) -> None:
        self.waiting: dict[tuple[int, int], Launch] = {}
        self._cloud = cloud
        self._lane: Lane[_Waiting] = Lane(most)
        self._caps = caps
        self._lock = lock
        self._threads = ThreadPoolExecutor(most, thread_name_prefix=cloud)
        self._is_closed = False

    def submit(self, call: Call, /) -> Future[Answered]:
        """Have `call` made in its turn. The future can be cancelled until it begins."""
        waiting = _Waiting(call, Future())
        with self._lock:
            if call.launch is not None:
                self.waiting[call.launch.key[:2]] = call.launch
            self._lane.add(waiting, call.launch)
            self.begin_what_may()
        return waiting.done

    def begin_what_may(self) -> None:
        """To be called with the lock held."""
        while not self._is_closed and (found := self._lane.next(self._judge)) is not None:
            number, launch, waiting = found
            if launch is not None:
                self._caps.begin(self._cloud, launch)
            self._threads.submit(self._work, number, launch, waiting)

    def shutdown(self) -> None:
        with self._lock:
            self._is_closed = True
        self._threads.shutdown(wait=True)

    def _judge(self, launch: Launch, waiting: _Waiting) -> Verdict:
        if waiting.done.cancelled():
            self._let_go(launch)
            return Verdict.DROP
        if self._caps.why_user_waits(launch):
            return Verdict.PASS
        if self._caps.why_cloud_is_full(self._cloud, launch):
            return Verdict.STOP
        self._let_go(launch)
        return Verdict.BEGIN if waiting.done.set_running_or_notify_cancel() else Verdict.DROP

    def _let_go(self, launch: Launch) -> None:
        if self.waiting.get(launch.key[:2]) == launch:
            del self.waiting[launch.key[:2]]

    def _work(self, number: int, launch: Launch | None, waiting: _Waiting) -> None:
        answered = Answered()
        try:
            answered = waiting.call()
        except Exception:
            log.exception("worker.failed", cloud=self._cloud)
        with self._lock:
            self._lane.ended(number, is_throttled=answered.is_throttled)
            if launch is not None and not answered.may_exist:
                self._caps.failed(launch)
            self.begin_what_may()
        waiting.done.set_result(answered)
