"""What a policy answers, and the shape of a policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from holdfast.recovery.job import TaskView
from holdfast.recovery.market import MarketView, Offer


@dataclass(frozen=True)
class Place:
    """Try this offer now."""

    offer: Offer


@dataclass(frozen=True)
class Wait:
    """Every offer that fits is being avoided; look again at `until` (epoch seconds). `why`: one line per offer."""

    until: float
    why: tuple[str, ...]


@dataclass(frozen=True)
class Never:
    """No offer that exists can ever fit. `why`: one line per alternative or cloud, for people.

    `is_request`: the request is at fault (or its credentials), rather than what clouds sell.
    """

    why: tuple[str, ...]
    is_request: bool = False


Choice = Place | Wait | Never


class Policy(Protocol):
    """A policy never sleeps, never mutates, and never starves an offer: whatever the refusals, every offer that fits is
    chosen again in bounded time."""

    def __call__(self, task: TaskView, market: MarketView, now: float) -> Choice: ...
