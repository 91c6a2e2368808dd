"""Runs calls of clouds in threads. Each cloud has a queue and a bounded number of threads, made when there is work.

Each call is made by `call_on_thread`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from perdure.controller.clouds.registry import default_concurrent_calls
from perdure.controller.execute.call_order import AdmissionDecision, CloudQueue, QueuedLaunch
from perdure.controller.execute.call_types import CallFeedback, CloudCall
from perdure.controller.execute.quotas import QuotaTracker
from perdure.controller.runtime.config.limits import Quotas
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.queries.usage import Usage

log = structlog.get_logger(__name__)

USAGE_INTERVAL_S = 1.0

ReadUsage = Callable[[Collection[AttemptKey]], Usage]
RunCall = Callable[[CloudCall], CallFeedback]


@dataclass(frozen=True, eq=False)
class _Waiting:
    call: CloudCall
    done: Future[CallFeedback]


class CloudPools:
    """The workers of each cloud, made when first used. Safe to use from any thread.

    `run` makes a call. `read_usage` reads the machines and running jobs of all controllers, for the quotas; its
    argument names the launches whose state it must include, and it may raise what the database raises. With quotas, and
    with limits of users, `refresh_usage` must be called before anything is launched, and then every
    `USAGE_INTERVAL_S`.
    """

    def __init__(self, quotas: Quotas, read_usage: ReadUsage, run: RunCall) -> None:
        self._quotas = quotas
        self._read_usage = read_usage
        self._run = run
        self._lock = threading.Lock()
        self._pools: dict[str, WorkerPool] = {}
        self._tracker = QuotaTracker(quotas)

    def submit(self, call: CloudCall, /) -> Future[CallFeedback]:
        """Queue `call` at its cloud. The future can be cancelled until the call begins."""
        return self._pool(call.pool).submit(call)

    def _pool(self, cloud: str) -> WorkerPool:
        with self._lock:
            if cloud not in self._pools:
                max_calls = self._quotas.concurrency_limit(cloud, default_concurrent_calls(cloud))
                self._pools[cloud] = WorkerPool(cloud, max_calls, self._tracker, self._lock, self._run)
            return self._pools[cloud]

    def refresh_usage(self) -> None:
        """Read the usage again, and start what has room now. Raises what `read_usage` raises."""
        with self._lock:
            snapshot, reserved = self._tracker.snapshot(), frozenset(self._tracker.reserved)
        usage = self._read_usage(reserved)
        with self._lock:
            self._tracker.refresh(usage, snapshot)
            for pool in self._pools.values():
                pool.start_ready()

    def why_waiting(self, job_id: int, task: int) -> str | None:
        """Which quota delays a launch of the job's task; None if no quota does."""
        with self._lock:
            for cloud, pool in self._pools.items():
                if (launch := pool.waiting.get((job_id, task))) is not None:
                    return self._tracker.blocked_reason(cloud, launch)
        return None

    def queue_depths(self) -> dict[str, int]:
        """How many launches wait, by cloud."""
        with self._lock:
            return {cloud: len(pool.waiting) for cloud, pool in self._pools.items()}

    def shutdown(self) -> None:
        """Start no more calls, and wait for those that run."""
        for pool in list(self._pools.values()):
            pool.shutdown()


class WorkerPool:
    """One cloud's queue and threads. `lock` guards this pool, its siblings and `tracker`."""

    def __init__(self, cloud: str, max_calls: int, tracker: QuotaTracker, lock: threading.Lock, run: RunCall) -> None:
        #: Launches that have not begun, by job and task: the newest of each.
        self.waiting: dict[tuple[int, int], QueuedLaunch] = {}
        self._cloud = cloud
        self._queue: CloudQueue[_Waiting] = CloudQueue(max_calls)
        self._tracker = tracker
        self._lock = lock
        self._run = run
        self._threads = ThreadPoolExecutor(max_calls, thread_name_prefix=cloud)
        self._is_closed = False

    def submit(self, call: CloudCall, /) -> Future[CallFeedback]:
        """Queue `call`. The future can be cancelled until the call begins."""
        waiting = _Waiting(call, Future())
        launch = call.launch
        with self._lock:
            if launch is not None:
                self.waiting[launch.key[:2]] = launch
            self._queue.add(waiting, launch)
            self.start_ready()
        return waiting.done

    def start_ready(self) -> None:
        """Start the calls that may begin now. The caller holds the lock."""
        while not self._is_closed and (ready := self._queue.next(self._admit)) is not None:
            number, launch, waiting = ready
            if launch is not None:
                self._tracker.reserve(self._cloud, launch)
            self._threads.submit(self._work, number, launch, waiting)

    def shutdown(self) -> None:
        with self._lock:
            self._is_closed = True
        self._threads.shutdown(wait=True)

    def _admit(self, launch: QueuedLaunch, waiting: _Waiting) -> AdmissionDecision:
        if waiting.done.cancelled():
            self._remove_waiting(launch)
            return AdmissionDecision.CANCELLED
        if self._tracker.user_blocked_reason(launch):
            return AdmissionDecision.SKIP_USER
        if self._tracker.cloud_blocked_reason(self._cloud, launch):
            return AdmissionDecision.BLOCK_CLOUD
        self._remove_waiting(launch)
        return AdmissionDecision.ADMIT if waiting.done.set_running_or_notify_cancel() else AdmissionDecision.CANCELLED

    def _remove_waiting(self, launch: QueuedLaunch) -> None:
        if self.waiting.get(launch.key[:2]) == launch:
            del self.waiting[launch.key[:2]]

    def _work(self, number: int, launch: QueuedLaunch | None, waiting: _Waiting) -> None:
        feedback = CallFeedback()
        try:
            feedback = self._run(waiting.call)
        except Exception:
            log.exception("worker.failed", cloud=self._cloud, attempt=waiting.call.attempt_key)
        try:
            with self._lock:
                self._queue.on_finished(number, is_throttled=feedback.is_throttled)
                if launch is not None and not feedback.may_exist:
                    self._tracker.release(launch)
                self.start_ready()
        except Exception:
            log.exception("worker.failed", cloud=self._cloud, attempt=waiting.call.attempt_key)
        finally:
            waiting.done.set_result(feedback)
