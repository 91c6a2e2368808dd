"""What `step` asks the outside world to do. The daemon stores each as an intent before it is performed."""

from __future__ import annotations

from dataclasses import field

from perdure.recovery.history import History, Sighting, learn
from perdure.recovery.job import JobView
from perdure.recovery.market import Offer, Refusal
from perdure.recovery.reasons import Reason
from perdure.recovery.values import dataclass


@dataclass(frozen=True)
class PrepareStorage:
    """Make the task's buckets that do not exist. Answered by `StorageReady` or `StorageFailed`."""

    task: int


@dataclass(frozen=True)
class Launch:
    """Buy `num_nodes` machines of `offer`. Answered by `Launched` or `LaunchRefused`."""

    task: int
    generation: int
    offer: Offer
    num_nodes: int


@dataclass(frozen=True)
class Terminate:
    """End every machine of the attempt; repeated until the cloud says gone. Answered by `AttemptGone`."""

    task: int
    generation: int


@dataclass(frozen=True)
class Check:
    """Ask the cloud about the attempt's machines now. Answered by `MachinesSeen`. Touches nothing: it is no intent."""

    task: int
    generation: int


@dataclass(frozen=True)
class Refuse:
    """Remember that an offer said no, for every job of this controller."""

    refusal: Refusal


@dataclass(frozen=True)
class Learn:
    """Add to the history of offers, for every job of this controller: see `history.learn`."""

    sighting: Sighting
    _known: list[tuple[History, History]] = field(default_factory=list, repr=False, compare=False)

    def added_to(self, history: History) -> History:
        """Who decides asks first, then who performs it: of the same history, it is worked out once."""
        if self._known and self._known[0][0] is history:
            return self._known[0][1]
        found = learn(history, self.sighting)
        self._known[:] = [(history, found)]
        return found


@dataclass(frozen=True)
class Note:
    """A line of the job's timeline. `kind` is a short dotted name, `data` plain JSON."""

    kind: str
    task: int | None = None
    generation: int | None = None
    rank: int | None = None
    reason: Reason | None = None
    message: str = ""
    data: dict[str, object] = field(default_factory=dict)


Action = PrepareStorage | Launch | Terminate | Check | Refuse | Learn | Note


@dataclass(frozen=True)
class Step:
    """The answer to one event: the job as it is now believed to be, what to do, and when to look again.

    `wake_at` is None only when the job awaits an observation that is sure to come, or is settled.
    """

    job: JobView
    actions: tuple[Action, ...] = ()
    wake_at: float | None = None
