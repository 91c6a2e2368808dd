"""What a policy answers, and the shape of a policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from perdure.recovery.job import TaskView
from perdure.recovery.market import MarketView, Offer
from perdure.recovery.values import dataclass


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


@dataclass(frozen=True)
class Stay:
    """Go on where the task runs. Ask again at `until` (epoch seconds); None: not before something happens."""

    until: float | None = None


@dataclass(frozen=True)
class Move:
    """Have a replacement bought and set up while the task runs on; it takes over once READY. `why`: for people."""

    offer: Offer
    why: str = ""


Reconsidered = Stay | Move


class Policy(Protocol):
    """A policy never sleeps, never mutates, and never starves an offer: whatever the refusals, every offer that fits is
    chosen again in bounded time."""

    def choose(self, task: TaskView, market: MarketView, now: float) -> Choice:
        """Where to go, for a task that is nowhere."""
        ...

    def reconsider(self, task: TaskView, market: MarketView, now: float, /) -> Reconsidered:
        """Whether a task that runs (`task.current`) shall run elsewhere.

        A `Move` is a launch: one that is refused is asked about again at once, with the refusal in `market`.
        """
        ...


@dataclass(frozen=True)
class Steadfast:
    """A policy that never leaves a machine of its own accord."""

    where: Callable[[TaskView, MarketView, float], Choice]

    def choose(self, task: TaskView, market: MarketView, now: float) -> Choice:
        return self.where(task, market, now)

    def reconsider(self, _task: TaskView, _market: MarketView, _now: float, /) -> Reconsidered:
        return Stay()
