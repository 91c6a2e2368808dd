"""A queue of notices, with what the tests do on each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perdure.controller.clouds.base.notice_queue import NoticeQueue, Signal


@dataclass(frozen=True)
class QueueBench:
    """A queue under test."""

    queue: NoticeQueue
    signals: tuple[Signal, ...]  # those that the cloud reports
    notice_s: float
    id_of: Callable[[int], str]  # number → the id of a machine
    send: Callable[[Signal, str, float], None]  # (signal, id, time) → an event as the cloud writes it
    write: Callable[[str], None]  # a message of another writer
    num_left: Callable[[], int]  # how many messages are not deleted
    throttle: Callable[[int], None]  # throttles that many of the next calls
    others: tuple[str, ...]  # events that do not matter
