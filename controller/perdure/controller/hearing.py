"""Hears the clouds' notice queues, where there are any: a thread each. What they say takes the path of the nodes' own.

A message is deleted when what follows from it is recorded. It may come twice, after the node's own word, or for a
machine that is nobody's here: then nothing follows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import structlog
from sqlalchemy import Engine

from perdure.controller.clouds.base import Cloud
from perdure.controller.clouds.queues import Heard, MalformedMessage, Message, NoticeQueue, Telling, Word
from perdure.controller.reconcile import Reconciler
from perdure.controller.store.machines import Node, node_of
from perdure.controller.turns import Turn
from perdure.recovery import events
from perdure.recovery.backoff import delay

log = structlog.get_logger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0
RECORDED_WITHIN_S = 30.0
SHOWN_CHARS = 500


def queues_of(clouds: Iterable[Cloud]) -> list[NoticeQueue]:
    """Those of every cloud that can be used."""
    telling = [cloud for cloud in clouds if isinstance(cloud, Telling)]
    return [queue for cloud in telling for queue in cloud.notice_queues()]


class Hearing:
    """One queue. `pause_s`: how long it leaves the queue alone now: it had nothing, or something went wrong."""

    def __init__(self, queue: NoticeQueue, database: Engine, reconciler: Reconciler) -> None:
        self._queue = queue
        self._database = database
        self._reconciler = reconciler
        self._failed = 0
        self._stopped = threading.Event()
        self.pause_s = 0.0

    def start(self) -> None:
        threading.Thread(target=self._run, name="notices", daemon=True).start()

    def stop(self) -> None:
        """What is being heard comes again."""
        self._stopped.set()

    def round(self) -> None:
        """Hear what the queue has. Raises nothing: what goes wrong is logged, and the queue left alone for a while."""
        try:
            messages = self._queue.receive()
            heard = [message for message in messages if self._is_done(message)]
            if heard:
                self._queue.delete(heard)
        except Exception as error:  # noqa: BLE001 - a queue is a comfort, and no condition for anything
            self._failed += 1
            fault = self._queue.classify(error)
            backed_off_s = delay(self._failed, FIRST_PAUSE_S, LONGEST_PAUSE_S, self._queue.name)
            self.pause_s = max(fault.retry_after_s or 0.0, backed_off_s)
            log.warning("notices.failed", queue=self._queue.name, error=fault.message, again_in_s=self.pause_s)
        else:
            self._failed, self.pause_s = 0, 0.0 if messages else self._queue.idle_s

    def _run(self) -> None:
        while not self._stopped.wait(self.pause_s):
            self.round()

    def _is_done(self, message: Message) -> bool:
        """Whether all that follows from it is recorded."""
        try:
            heard = self._queue.read(message)
        except MalformedMessage as error:
            shown = message.body[:SHOWN_CHARS]
            log.warning("notices.malformed", queue=self._queue.name, error=str(error), message=shown)
            return True
        if heard is None:
            return True
        with self._database.connect() as conn:
            node = node_of(conn, self._queue.cloud, heard.instance_id)
        return node is None or self._tell(heard, node)

    def _tell(self, heard: Heard, node: Node) -> bool:
        (job_id, task, generation), rank = node.key, node.rank
        match heard.word:
            case Word.NOTICE if node.notice_deadline is None and heard.deadline is not None:
                notice = events.NoticeGiven(task, generation, rank, heard.deadline)
                self._reconciler.post(Turn(job_id, notice)).result(RECORDED_WITHIN_S)
            case Word.AT_RISK if not node.is_at_risk:
                self._reconciler.at_risk(node.key, rank)
            case Word.ENDING:
                self._reconciler.look_later(node.key)
            case _:
                log.debug("notices.known", instance=heard.instance_id, word=heard.word)
        return True


def hearings(clouds: Iterable[Cloud], database: Engine, reconciler: Reconciler) -> Sequence[Hearing]:
    """One for each queue, not started."""
    return [Hearing(queue, database, reconciler) for queue in queues_of(clouds)]
