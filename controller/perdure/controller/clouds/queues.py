"""What a cloud says of all machines at once: a queue that its owner has it fill, as a Protocol and plain values.

It comes besides what each node hears of itself. It is for machines that can not speak any more, and for words that a
cloud has for no machine; who has no queue misses nothing that a node could have said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from perdure.controller.clouds.base import Fault


class Word(StrEnum):
    NOTICE = "notice"  # it will be taken, at the deadline
    AT_RISK = "at-risk"  # it is more likely than usual to be taken
    ENDING = "ending"  # it is on its way out, or gone


@dataclass(frozen=True)
class Heard:
    """`instance_id`: as in `Instance.id`. `deadline`: epoch seconds; of a NOTICE, and of nothing else."""

    word: Word
    instance_id: str
    deadline: float | None = None


@dataclass(frozen=True)
class Message:
    """`receipt`: what the queue deletes it by. One that is not deleted comes again."""

    receipt: str
    body: str


class NoticeQueue(Protocol):
    """One queue. Synchronous; nothing in it repeats a call. `name`: as config.yaml has it; `cloud`: whose machines
    it tells of, by the controller's name for it; `idle_s`: for how long it is left alone when it had nothing."""

    name: str
    cloud: str
    idle_s: float

    def receive(self) -> Sequence[Message]:
        """What is there. If nothing is, what comes within a while, where the cloud holds the call: at most half a
        minute."""
        ...

    def delete(self, messages: Sequence[Message]) -> None:
        """They have been heard. One that is not there any more is a success."""
        ...

    def read(self, message: Message) -> Heard | None:
        """What it says of a machine; None if nothing that counts. Raises MalformedMessage."""
        ...

    def classify(self, error: Exception) -> Fault:
        """What an exception of `receive` or `delete` means."""
        ...


class MalformedMessage(ValueError):
    """Not what this cloud says: somebody else wrote to the queue, or it is fed in another form."""


@runtime_checkable
class Telling(Protocol):
    """A cloud that may have such queues."""

    def notice_queues(self) -> Sequence[NoticeQueue]:
        """Those of the configuration; none unless asked for."""
        ...
