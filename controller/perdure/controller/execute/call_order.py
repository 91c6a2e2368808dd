"""Which call of a cloud is next: pure bookkeeping, without threads or a clock.

`worker_pool` runs what is chosen here. Control calls (terminate, describe) go first: they save money and keep the
controller's view correct. Launches follow by priority, then fairly between users, then in the order of their jobs.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, TypeVar

from perdure.controller.execute.concurrency import AdaptiveConcurrencyLimit
from perdure.controller.runtime.keys import AttemptKey

Item = TypeVar("Item")

_MAX_CONTROL_BURST = 8
"""After this many control calls in a row, a launch that may begin goes before the next one."""


@dataclass(frozen=True)
class QueuedLaunch:
    """What a launch is ordered by."""

    key: AttemptKey
    user: str = ""
    priority: int = 0
    machines: int = 1  # 0: it prepares something that the job needs before it can have machines
    has_run: bool = False  # the job has run before, so it already counts as one of its user's running jobs


class AdmissionDecision(Enum):
    """What to do with the launch that is next."""

    ADMIT = auto()
    CANCELLED = auto()  # drop it: it was cancelled while it waited
    SKIP_USER = auto()  # it waits, and so do all launches of its user
    BLOCK_CLOUD = auto()  # it waits, and so do all launches of its cloud


AdmissionCheck = Callable[[QueuedLaunch, Item], AdmissionDecision]


@dataclass
class PriorityClass(Generic[Item]):
    """Launches of one priority."""

    #: By user: a heap of launches.
    waiting: dict[str, list[tuple[bool, int, int, QueuedLaunch, Item]]] = field(default_factory=dict)
    #: By user: the machines launched for it. A user that starts to wait begins at the current `virtual_time`.
    served: dict[str, float] = field(default_factory=dict)
    #: A heap of (served, arrival order, user), of the users that have launches waiting.
    users: list[tuple[float, int, str]] = field(default_factory=list)
    #: `served` of the user whose launch was admitted last.
    virtual_time: float = 0.0


class FairQueue(Generic[Item]):
    """Waiting launches, in fair-queueing order.

    Higher priorities go first. Within one priority, the user with the fewest machines launched is next. Within one
    user, jobs that have run before are first, then the oldest job.
    """

    def __init__(self) -> None:
        self._classes: dict[int, PriorityClass[Item]] = {}
        self._order = itertools.count()

    def add(self, launch: QueuedLaunch, item: Item) -> None:
        priority_class = self._classes.setdefault(launch.priority, PriorityClass())
        own = priority_class.waiting.setdefault(launch.user, [])
        if not own:
            served = max(priority_class.virtual_time, priority_class.served.get(launch.user, 0.0))
            priority_class.served[launch.user] = served
            heapq.heappush(priority_class.users, (served, next(self._order), launch.user))
        heapq.heappush(own, (not launch.has_run, launch.key[0], next(self._order), launch, item))

    def next(self, admit: AdmissionCheck[Item]) -> tuple[QueuedLaunch, Item] | None:
        """Remove and return the next launch that may begin; None if none may. Drops cancelled launches on the way."""
        for priority in sorted(self._classes, reverse=True):
            priority_class = self._classes[priority]
            decision, admitted = self._next_of(priority_class, admit)
            if not priority_class.users:
                del self._classes[priority]
            if decision is not AdmissionDecision.SKIP_USER:
                return admitted
        return None

    def _next_of(
        self, priority_class: PriorityClass[Item], admit: AdmissionCheck[Item]
    ) -> tuple[AdmissionDecision, tuple[QueuedLaunch, Item] | None]:
        skipped, decision, admitted = [], AdmissionDecision.SKIP_USER, None
        while priority_class.users and decision is AdmissionDecision.SKIP_USER:
            entry = priority_class.users[0]
            served, _, user = entry
            launch, item = priority_class.waiting[user][0][3:]
            match admit(launch, item):
                case AdmissionDecision.ADMIT:
                    decision, admitted = AdmissionDecision.ADMIT, (launch, item)
                    priority_class.virtual_time = served
                    priority_class.served[user] = served + max(1, launch.machines)
                    self._pop_first(priority_class)
                case AdmissionDecision.CANCELLED:
                    self._pop_first(priority_class)
                case AdmissionDecision.SKIP_USER:
                    skipped.append(heapq.heappop(priority_class.users))
                case AdmissionDecision.BLOCK_CLOUD:
                    decision = AdmissionDecision.BLOCK_CLOUD
        for entry in skipped:
            heapq.heappush(priority_class.users, entry)
        return decision, admitted

    def _pop_first(self, priority_class: PriorityClass[Item]) -> None:
        """Remove the first launch of the first user, and put the user back if it has more."""
        _, order, user = heapq.heappop(priority_class.users)
        own = priority_class.waiting[user]
        heapq.heappop(own)
        if own:
            heapq.heappush(priority_class.users, (priority_class.served[user], order, user))
        else:
            del priority_class.waiting[user]


class CloudQueue(Generic[Item]):
    """The calls of one cloud that wait, and the limit on those that run."""

    def __init__(self, max_calls: int) -> None:
        self.concurrency = AdaptiveConcurrencyLimit(max_calls)
        self._control: deque[Item] = deque()
        self._launches: FairQueue[Item] = FairQueue()
        self._control_burst = 0

    def add(self, item: Item, launch: QueuedLaunch | None) -> None:
        """Queue `item`. `launch` is None for a control call."""
        if launch is None:
            self._control.append(item)
        else:
            self._launches.add(launch, item)

    def next(self, admit: AdmissionCheck[Item]) -> tuple[int, QueuedLaunch | None, Item] | None:
        """The call to begin now, with its number for `on_finished`; None if nothing waits or may begin."""
        if not self.concurrency.has_room:
            return None
        admitted = None
        if not self._control or self._control_burst >= _MAX_CONTROL_BURST:
            admitted = self._launches.next(admit)
        if admitted is not None:
            self._control_burst = 0
            return self.concurrency.start(), *admitted
        if not self._control:
            return None
        self._control_burst += 1
        return self.concurrency.start(), None, self._control.popleft()

    def on_finished(self, number: int, *, is_throttled: bool) -> None:
        self.concurrency.finish(number, is_throttled=is_throttled)
