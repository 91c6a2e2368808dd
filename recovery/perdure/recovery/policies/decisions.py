"""What a policy returns, and the protocol of a policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from perdure.recovery.frozen import dataclass
from perdure.recovery.job import TaskView
from perdure.recovery.market.view import MarketView, Offer


@dataclass(frozen=True)
class Place:
    """Try this offer now."""

    offer: Offer


@dataclass(frozen=True)
class Wait:
    """Every offer that fits is being avoided."""

    until: float  # when to choose again, in epoch seconds
    why: tuple[str, ...]  # for users: one line per offer


@dataclass(frozen=True)
class Unsatisfiable:
    """No existing offer can ever fit."""

    why: tuple[str, ...]  # for users: one line per alternative or cloud
    request_at_fault: bool = False  # the clouds rejected the request or its credentials; else no offer fits


Choice = Place | Wait | Unsatisfiable


@dataclass(frozen=True)
class Stay:
    """Keep the task where it runs."""

    until: float | None = None  # when to reconsider, in epoch seconds; None: not before an event


@dataclass(frozen=True)
class Move:
    """Launch a replacement while the task runs on. It takes over once it is READY."""

    offer: Offer
    why: str = ""  # for users


Reconsidered = Stay | Move


class Policy(Protocol):
    """A policy never sleeps and never mutates anything.

    It never starves an offer: whatever has been refused, every offer that fits is chosen again in bounded time.
    """

    def choose(self, task: TaskView, market: MarketView, now: float) -> Choice:
        """Where to place a task that has no attempt."""
        ...

    def reconsider(self, task: TaskView, market: MarketView, now: float, /) -> Reconsidered:
        """Whether a task that runs (`task.current`) shall move.

        A `Move` is a launch: if it is refused, the policy is called again at once, with the offer in
        `market.unavailable`.
        """
        ...


@dataclass(frozen=True)
class NeverMoves:
    """A policy that leaves a machine only when it is lost."""

    choose_offer: Callable[[TaskView, MarketView, float], Choice]

    def choose(self, task: TaskView, market: MarketView, now: float) -> Choice:
        return self.choose_offer(task, market, now)

    def reconsider(self, _task: TaskView, _market: MarketView, _now: float, /) -> Reconsidered:
        return Stay()
