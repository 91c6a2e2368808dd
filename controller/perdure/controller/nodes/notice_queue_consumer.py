"""Consumers of the clouds' queues of interruption notices, one thread for each queue.

A signal of a queue has the same effect as a notice that a node sends itself: it is handed to `reconcile.inbox`. It also
confirms such a notice: from then on, the loss counts against the offer for every job. A message is deleted once its
effect is recorded; the effect of a message about an end is a question to the cloud. A message that arrives twice, or
for a machine that belongs to no job, has no effect.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence

import structlog
from sqlalchemy import Engine

from perdure.controller.clouds.base.notice_queue import (
    HasNoticeQueues,
    MachineSignal,
    MalformedMessage,
    NoticeQueue,
    QueueMessage,
    Signal,
)
from perdure.controller.clouds.base.protocol import Cloud
from perdure.controller.reconcile.inbox import ReconcilerInbox
from perdure.controller.reconcile.work_items import JobEvent
from perdure.controller.runtime.loop_guard import LoopGuard
from perdure.controller.store.engine.database import is_transient
from perdure.controller.store.records.machines import InstanceNode, find_by_instance
from perdure.recovery import events
from perdure.recovery.rules.backoff import delay

log = structlog.get_logger(__name__)

INITIAL_BACKOFF_S = 1.0
MAX_BACKOFF_S = 300.0
RECORD_TIMEOUT_S = 30.0
NEW_QUEUES_INTERVAL_S = 2.0
MAX_LOGGED_CHARS = 500
# The notice of an event that states no deadline: the shortest that a cloud gives.
ASSUMED_NOTICE_S = 30.0


class NoticeQueueConsumer:
    """Consumes one queue."""

    def __init__(self, queue: NoticeQueue, database: Engine, inbox: ReconcilerInbox) -> None:
        self._queue = queue
        self._database = database
        self._inbox = inbox
        self._failures = 0
        self._stopped = threading.Event()
        #: How long to wait before the next poll: the queue was empty, or a call failed.
        self.backoff_s = 0.0

    def start(self) -> None:
        threading.Thread(target=self._run, name="notices", daemon=True).start()

    def stop(self) -> None:
        """Stop after the current poll. Messages that were received but not deleted are delivered again."""
        self._stopped.set()

    def poll_once(self) -> None:
        """Receive messages, apply them, and delete them. Raises nothing: errors are logged and set `backoff_s`."""
        try:
            messages = self._queue.receive()
            processed, failure = self._process_all(messages)
            if processed:
                self._queue.delete(processed)
            if failure is not None:
                raise failure
        except Exception as error:  # noqa: BLE001 - nothing depends on a queue: nodes send their notices themselves
            self._failures += 1
            fault = self._queue.classify(error)
            backoff_s = delay(self._failures, INITIAL_BACKOFF_S, MAX_BACKOFF_S, self._queue.name)
            self.backoff_s = max(fault.retry_after_s or 0.0, backoff_s)
            log.warning("notices.failed", queue=self._queue.name, error=fault.message, retry_in_s=self.backoff_s)
        else:
            self._failures, self.backoff_s = 0, 0.0 if messages else self._queue.idle_s

    def _run(self) -> None:
        guard = LoopGuard("notices", self._stopped)
        while not self._stopped.wait(self.backoff_s):
            with guard:
                self.poll_once()

    def _process_all(self, messages: Sequence[QueueMessage]) -> tuple[list[QueueMessage], Exception | None]:
        """The messages that were processed, and the error after which the others were not.

        A message that cannot be processed, although the database works, is logged and holds up no other.
        """
        processed: list[QueueMessage] = []
        for message in messages:
            try:
                self._process(message)
            except Exception as error:
                if is_transient(error) or isinstance(error, TimeoutError):
                    return processed, error
                log.exception("notices.set_aside", queue=self._queue.name, message=message.body[:MAX_LOGGED_CHARS])
            processed.append(message)
        return processed, None

    def _process(self, message: QueueMessage) -> None:
        """Apply a message, and wait until its effect is recorded."""
        try:
            signals = self._queue.parse(message)
        except MalformedMessage as error:
            shown = message.body[:MAX_LOGGED_CHARS]
            log.warning("notices.malformed", queue=self._queue.name, error=str(error), message=shown)
            return
        for signal in signals:
            with self._database.connect() as conn:
                node = find_by_instance(conn, self._queue.cloud, signal.instance_id)
            if node is not None:
                self._apply(signal, node)

    def _apply(self, signal: MachineSignal, node: InstanceNode) -> None:
        """Returns once the effect of the signal is recorded. Raises TimeoutError if that takes too long."""
        (job_id, task, generation), rank = node.key, node.rank
        match signal.signal:
            case Signal.NOTICE if (deadline := self._new_deadline(signal, node)) is not None:
                notice = events.PreemptionNotice(task, generation, rank, deadline, confirmed=True)
                self._inbox.submit(JobEvent(job_id, notice)).result(RECORD_TIMEOUT_S)
            case Signal.AT_RISK:
                is_new = not node.rebalance_recommended
                recorded = self._inbox.recommend_rebalance(node.key, rank, confirmed=True, is_new=is_new)
                recorded.result(RECORD_TIMEOUT_S)
            case Signal.ENDING:
                self._inbox.request_describe(node.key).result(RECORD_TIMEOUT_S)
            case _:
                log.debug("notices.duplicate", instance=signal.instance_id, signal=signal.signal)

    def _new_deadline(self, signal: MachineSignal, node: InstanceNode) -> float | None:
        """The deadline of a notice; None if the notice is known already.

        The node may have reported another deadline, such as the longest that it may get: the earlier one counts. A
        signal without a deadline confirms the node's own.
        """
        if node.notice_deadline is None:
            return self._inbox.notice_deadline(signal.deadline, ASSUMED_NOTICE_S)
        stated = math.inf if signal.deadline is None else self._inbox.notice_deadline(signal.deadline, ASSUMED_NOTICE_S)
        if node.loss_confirmed and stated >= node.notice_deadline:
            return None
        return min(node.notice_deadline, stated)


class NoticeQueueConsumers:
    """The consumers of the queues of all clouds, also of those that a cloud gets while the controller runs."""

    def __init__(self, clouds: Iterable[Cloud], database: Engine, inbox: ReconcilerInbox) -> None:
        self._clouds = [cloud for cloud in clouds if isinstance(cloud, HasNoticeQueues)]
        self._database = database
        self._inbox = inbox
        self._lock = threading.Lock()  # guards the consumers, none of which is started once `stop` was called
        self._consumers: dict[tuple[str, str], NoticeQueueConsumer] = {}  # by the names of the cloud and the queue
        self._stopped = threading.Event()

    def start(self) -> None:
        if self._clouds:
            threading.Thread(target=self._run, name="notice-queues", daemon=True).start()

    def stop(self) -> None:
        """Stop each after its current poll."""
        with self._lock:
            self._stopped.set()
            for consumer in self._consumers.values():
                consumer.stop()

    def start_new(self) -> None:
        """Start a consumer for each queue that has none."""
        for cloud in self._clouds:
            for queue in cloud.notice_queues():
                with self._lock:
                    name = (queue.cloud, queue.name)
                    if name not in self._consumers and not self._stopped.is_set():
                        self._consumers[name] = NoticeQueueConsumer(queue, self._database, self._inbox)
                        self._consumers[name].start()

    def _run(self) -> None:
        guard = LoopGuard("notice-queues", self._stopped)
        while not self._stopped.is_set():
            with guard:
                self.start_new()
            self._stopped.wait(NEW_QUEUES_INTERVAL_S)
