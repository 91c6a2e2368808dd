"""What `step` returns: the actions to perform, and the job after them.

`PrepareStorage`, `Launch` and `Terminate` change something outside: the controller stores each as an intent before it
performs it. The other actions only query or record something.
"""

from __future__ import annotations

from dataclasses import field

from perdure.recovery.frozen import dataclass
from perdure.recovery.job import JobView
from perdure.recovery.market.history import History, OfferObservation, with_observation
from perdure.recovery.market.unavailable import UnavailableOffer
from perdure.recovery.market.view import Offer
from perdure.recovery.reasons import Reason


@dataclass(frozen=True)
class PrepareStorage:
    """Create those of the task's buckets that do not exist. Results in `StorageReady` or `StorageFailed`."""

    task: int


@dataclass(frozen=True)
class Launch:
    """Launch `num_nodes` machines of `offer`. Results in `Launched`, `LaunchRefused` or `LaunchCancelled`."""

    task: int
    generation: int
    offer: Offer
    num_nodes: int


@dataclass(frozen=True)
class Terminate:
    """Terminate every machine of the attempt; repeated until the cloud confirms. Results in `AttemptGone`."""

    task: int
    generation: int


@dataclass(frozen=True)
class DescribeMachines:
    """Ask the cloud for the state of the attempt's machines. Results in `MachinesDescribed`."""

    task: int
    generation: int


@dataclass(frozen=True)
class AvoidOffer:
    """Have every job of this controller avoid an offer for a while; only the job itself if it is `unconfirmed`."""

    unavailable: UnavailableOffer


@dataclass(frozen=True)
class RecordObservation:
    """Add to the history of offers, for every job of this controller: see `history.with_observation`."""

    observation: OfferObservation
    unconfirmed: bool = False  # a node alone reports it: it counts for this job only
    # The history that `apply_to` was last called with, and its result.
    _applied: list[tuple[History, History]] = field(default_factory=list, repr=False, compare=False)

    def apply_to(self, history: History) -> History:
        """`history` with the observation. The same history gives the same object: rules and the controller both ask."""
        if self._applied and self._applied[0][0] is history:
            return self._applied[0][1]
        result = with_observation(history, self.observation)
        self._applied[:] = [(history, result)]
        return result


TIMELINE_KINDS = frozenset(
    {
        "attempt.failed",
        "attempt.gone",
        "attempt.kept",
        "attempt.launched",
        "attempt.lost",
        "attempt.moving",
        "attempt.refused",
        "attempt.requested",
        "attempt.running",
        "attempt.setting_up",
        "attempt.stopped",
        "attempt.withdrawn",
        "checkpoint.committed",
        "checkpoint.durable",
        "checkpoint.loaded",
        "checkpoint.saved",
        "disks.lost",
        "event.set_aside",
        "job.cancel",
        "job.preemption_simulated",
        "job.submitted",
        "launch.retry",
        "node.boot_token_reused",
        "node.entered",
        "node.gone",
        "node.notice",
        "node.rebalance_recommended",
        "prepare-storage.retry",
        "probe.completed",
        "remove-storage.retry",
        "replacement.lost",
        "task.budget_warning",
        "task.deadline_missed_forecast",
        "task.ended",
        "task.stuck",
        "task.waiting",
        "task.work_estimated",
        "task.work_lost",
        "terminate.retry",
    }
)
"""Every kind of timeline entry."""


@dataclass(frozen=True)
class TimelineEntry:
    """A line of the job's timeline."""

    kind: str  # one of TIMELINE_KINDS
    task: int | None = None
    generation: int | None = None
    rank: int | None = None
    reason: Reason | None = None
    message: str = ""  # for people
    data: dict[str, object] = field(default_factory=dict)  # plain JSON


Action = PrepareStorage | Launch | Terminate | DescribeMachines | AvoidOffer | RecordObservation | TimelineEntry


@dataclass(frozen=True)
class Step:
    """The result of one event."""

    job: JobView  # as it is after the event and all rules
    actions: tuple[Action, ...] = ()
    # When `step` must be called again with a `Tick`. None only if an observation is sure to come, or the job is
    # finalized.
    wake_at: float | None = None
