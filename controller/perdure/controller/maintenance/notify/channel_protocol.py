"""What a channel does: deliver one message, and say how it went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

TIMEOUT_S = 15.0
"""The limit of one delivery, except for callbacks."""


@dataclass(frozen=True)
class Message:
    """One event, or a digest of several. `body` is what webhooks receive; `title` and `text` are for people."""

    id: str
    kind: str
    title: str
    text: str
    body: Mapping[str, Any]
    thread: str = ""  # the same for all messages about one job


@dataclass(frozen=True)
class Delivered:
    """The channel has accepted the message."""

    detail: str = ""


@dataclass(frozen=True)
class NotDelivered:
    """The message may be sent again. `retry_after_s`: not before. `is_final`: the channel asks never to be called
    again."""

    error: str
    retry_after_s: float | None = None
    is_final: bool = False


class Deliverer(Protocol):
    """A channel. Safe to use from any thread; takes at most about `TIMEOUT_S`, and raises nothing."""

    def deliver(self, message: Message, /) -> Delivered | NotDelivered: ...
