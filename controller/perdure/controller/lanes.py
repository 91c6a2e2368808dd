"""Which call of a cloud goes next, and how many may be under way: pure bookkeeping, without threads or a clock.

`pools` runs what is chosen here. What ends machines and what looks after them goes first: it saves money, and tells
what is true. Launches follow by priority, then fairly between users, then in the order of their jobs.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, TypeVar

from perdure.controller.keyring import AttemptKey

Item = TypeVar("Item")

FIRST_IN_FLIGHT = 16
_MOST_AHEAD = 8  # calls that go first, before a launch that could begin has its turn all the same


@dataclass(frozen=True)
class Launch:
    """What a launch is ordered by. `is_begun`: its job has run before, so it takes no new place among its user's.
    `machines` 0: it prepares what a job needs before it can have any."""

    key: AttemptKey
    user: str = ""
    priority: int = 0
    machines: int = 1
    is_begun: bool = False


class Verdict(Enum):
    """What is to become of the launch whose turn it would be."""

    BEGIN = auto()
    DROP = auto()  # nobody wants it any more
    PASS = auto()  # its user's others wait, too
    STOP = auto()  # so do all launches of this cloud


Judge = Callable[[Launch, Item], Verdict]


class Window:
    """How many calls may be under way: more while a cloud answers well, half as many once it asks to be called less.

    It doubles with every round of good answers until the first complaint, and grows by one a round from then on; only
    where all of it was in use. Of calls that were under way at the same time, the first complaint counts.
    """

    def __init__(self, most: int, first: int = FIRST_IN_FLIGHT) -> None:
        self.most = most
        self.in_flight = 0
        self.size = min(first, most)
        self._doubles = True
        self._good = 0
        self._begun = 0
        self._since = 0

    @property
    def has_room(self) -> bool:
        return self.in_flight < self.size

    def begin(self) -> int:
        """One more is under way; returns its number, for `end`."""
        self.in_flight += 1
        self._begun += 1
        return self._begun

    def end(self, number: int, *, is_throttled: bool) -> None:
        was_full = self.in_flight >= self.size
        self.in_flight -= 1
        if is_throttled:
            if number > self._since:
                self.size, self._doubles, self._good = max(1, self.size // 2), False, 0
                self._since = self._begun
        elif was_full:
            self._good += 1
            if self._doubles or self._good >= self.size:
                self.size, self._good = min(self.most, self.size + 1), 0


@dataclass
class _Level(Generic[Item]):
    """Launches of one priority. `turns`: users who have some, by the machines that they were served; who comes later
    begins where the others are."""

    waiting: dict[str, list[tuple[bool, int, int, Launch, Item]]] = field(default_factory=dict)
    served: dict[str, float] = field(default_factory=dict)
    turns: list[tuple[float, int, str]] = field(default_factory=list)
    now: float = 0.0


class Line(Generic[Item]):
    """Launches that wait, in the order in which they are due.

    Between users of one priority, the one who was served the fewest machines is next. Of a user's, those of jobs that
    have run before are first, then those of the oldest job.
    """

    def __init__(self) -> None:
        self._levels: dict[int, _Level[Item]] = {}
        self._order = itertools.count()

    def add(self, launch: Launch, item: Item) -> None:
        level = self._levels.setdefault(launch.priority, _Level())
        own = level.waiting.setdefault(launch.user, [])
        if not own:
            level.served[launch.user] = max(level.now, level.served.get(launch.user, 0.0))
            heapq.heappush(level.turns, (level.served[launch.user], next(self._order), launch.user))
        heapq.heappush(own, (not launch.is_begun, launch.key[0], next(self._order), launch, item))

    def next(self, judge: Judge[Item]) -> tuple[Launch, Item] | None:
        """The next that may begin, taken out; None where none may. Those that nobody wants are dropped on the way."""
        for priority in sorted(self._levels, reverse=True):
            level = self._levels[priority]
            verdict, found = self._next_of(level, judge)
            if not level.turns:
                del self._levels[priority]
            if verdict is not Verdict.PASS:
                return found
        return None

    def _next_of(self, level: _Level[Item], judge: Judge[Item]) -> tuple[Verdict, tuple[Launch, Item] | None]:
        passed, verdict, found = [], Verdict.PASS, None
        while level.turns and verdict is Verdict.PASS:
            turn = level.turns[0]
            own = level.waiting[turn[2]]
            launch, item = own[0][3:]
            match judge(launch, item):
                case Verdict.BEGIN:
                    verdict, found = Verdict.BEGIN, (launch, item)
                    level.now = turn[0]
                    level.served[launch.user] = turn[0] + max(1, launch.machines)
                    self._took(level)
                case Verdict.DROP:
                    self._took(level)
                case Verdict.PASS:
                    passed.append(heapq.heappop(level.turns))
                case Verdict.STOP:
                    verdict = Verdict.STOP
        for turn in passed:
            heapq.heappush(level.turns, turn)
        return verdict, found

    def _took(self, level: _Level[Item]) -> None:
        """The first launch of the user whose turn it was is out of the line."""
        _, order, user = heapq.heappop(level.turns)
        own = level.waiting[user]
        heapq.heappop(own)
        if own:
            heapq.heappush(level.turns, (level.served[user], order, user))
        else:
            del level.waiting[user]


class Lane(Generic[Item]):
    """The calls of one cloud: those that wait, and how many are under way."""

    def __init__(self, most: int) -> None:
        self.window = Window(most)
        self._first: deque[Item] = deque()
        self._line: Line[Item] = Line()
        self._ahead = 0

    def add(self, item: Item, launch: Launch | None) -> None:
        """Have `item` wait. `launch` None: one of those that go first."""
        if launch is None:
            self._first.append(item)
        else:
            self._line.add(launch, item)

    def next(self, judge: Judge[Item]) -> tuple[int, Launch | None, Item] | None:
        """What begins now, with its number for `ended`; None where nothing may, or nothing waits."""
        if not self.window.has_room:
            return None
        found = None
        if not self._first or self._ahead >= _MOST_AHEAD:
            found = self._line.next(judge)
        if found is not None:
            self._ahead = 0
            return self.window.begin(), *found
        if not self._first:
            return None
        self._ahead += 1
        return self.window.begin(), None, self._first.popleft()

    def ended(self, number: int, *, is_throttled: bool) -> None:
        self.window.end(number, is_throttled=is_throttled)
