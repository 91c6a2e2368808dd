"""Queues that a cloud fills with the events of all machines: a Protocol and the plain values that cross it.

They complement the notices that each node reads from its own metadata. They cover machines that have lost connectivity,
and events that a cloud does not announce on the machine. A queue is optional.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from perdure.controller.clouds.base.protocol import Fault


class Signal(StrEnum):
    NOTICE = "notice"  # the machine will be preempted at the deadline
    AT_RISK = "at-risk"  # the machine is more likely than usual to be preempted
    ENDING = "ending"  # the machine is shutting down, or gone


@dataclass(frozen=True)
class MachineSignal:
    """An event of one machine."""

    signal: Signal
    instance_id: str  # as in `Instance.id`
    deadline: float | None = None  # epoch seconds; of a NOTICE only; None: unknown


@dataclass(frozen=True)
class QueueMessage:
    """A message as received. The queue delivers it again unless it is deleted."""

    receipt: str  # identifies this delivery to `delete`
    body: str


class NoticeQueue(Protocol):
    """One queue. Its calls are synchronous and never retried."""

    name: str  # as in config.yaml
    cloud: str  # the controller's name of the cloud that the machines belong to
    idle_s: float  # how long to wait before the next call after an empty one

    def receive(self) -> Sequence[QueueMessage]:
        """The messages of one batch. If the queue is empty and the cloud supports long polling, wait for at most half a
        minute."""
        ...

    def delete(self, messages: Sequence[QueueMessage]) -> None:
        """Acknowledge these messages. One that is already gone is a success."""
        ...

    def parse(self, message: QueueMessage) -> Sequence[MachineSignal]:
        """The events that the message reports; none for one that does not matter. Raises MalformedMessage."""
        ...

    def classify(self, error: Exception) -> Fault:
        """What an exception of `receive` or `delete` means."""
        ...


class MalformedMessage(ValueError):
    """Not an event of this cloud: somebody else wrote to the queue, or it is fed in an unsupported format."""


@runtime_checkable
class HasNoticeQueues(Protocol):
    """A cloud that supports notice queues."""

    def notice_queues(self) -> Sequence[NoticeQueue]:
        """The configured queues; empty by default. Called again every few seconds, and must be quick: a cloud may get
        more of them while the controller runs. Their names identify them."""
        ...
