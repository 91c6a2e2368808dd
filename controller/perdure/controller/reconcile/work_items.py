"""The items in the reconciler's queue. Most are job events: one thing that happened to one job."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from perdure.controller.execute.call_types import DescribeResult, IntentOutcome, IntentResult, RetryLater
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.clusters.cluster_disks import DisksLost, KeptDisks
from perdure.controller.store.records.intents import Intent
from perdure.controller.store.records.job_claims import Claim
from perdure.recovery import events
from perdure.recovery.actions import TimelineEntry
from perdure.recovery.directive import STOP, Directive, directive_for
from perdure.recovery.job import AttemptView, JobView, NodeView


@dataclass(frozen=True)
class CheckpointReport:
    """A node's report on a checkpoint. It enters the timeline once per `seq`."""

    key: AttemptKey
    rank: int
    seq: int
    note: TimelineEntry


@dataclass(frozen=True)
class JobEvent:
    """One thing that happened to one job, with what is recorded along with it."""

    job_id: int
    event: events.Event = field(default_factory=events.Tick)
    performed: tuple[Intent, IntentOutcome] | None = None
    checkpoint: CheckpointReport | None = None
    notes: tuple[TimelineEntry, ...] = ()
    #: The peer message in which the event arrived; recording the event deletes the message.
    message_id: int | None = None
    #: Set by a timer for the job's wake time. The event is void if that time has changed since.
    is_wake: bool = False
    #: How often recording it has failed, although the database works.
    failures: int = field(default=0, compare=False)
    #: Completes when the event is recorded, or stored for the controller that will record it. None: nobody waits.
    done: Future[None] | None = field(default=None, compare=False)

    def with_future(self) -> tuple[JobEvent, Future[None]]:
        """The same event with a `done`, and that future."""
        done: Future[None] = self.done or Future()
        return replace(self, done=done), done


@dataclass(frozen=True)
class AdoptJobs:
    """Claimed jobs to take over."""

    claims: tuple[Claim, ...]
    views: Mapping[int, JobView] | None = None  # of jobs that were just accepted, for which nothing was done yet
    done: Future[None] = field(default_factory=Future, compare=False)


@dataclass(frozen=True)
class RecheckOwnership:
    """Check which owned jobs other controllers have claimed."""

    done: Future[None] = field(default_factory=Future, compare=False)


@dataclass(frozen=True)
class ReconnectDeadline:
    """The time is up in which the nodes of adopted jobs had to reconnect."""

    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class DescribeMachines:
    """Ask the cloud about an attempt's machines."""

    key: AttemptKey
    done: Future[None] = field(default_factory=Future, compare=False)


@dataclass(frozen=True)
class RetryIntent:
    """The result of an intent is not final."""

    intent: Intent
    retry: RetryLater


@dataclass
class OwnedJob:
    """A job that this controller owns."""

    claim: Claim
    view: JobView
    since: float  # owned since (epoch seconds); restarts when the controller was suspended or had no database
    wake_at: float | None = None
    commit_unknown: bool = False  # a transaction failed, but it may have been committed


TimedItem = JobEvent | Intent | AdoptJobs | RecheckOwnership | ReconnectDeadline
WorkItem = JobEvent | AdoptJobs | RecheckOwnership | ReconnectDeadline | DescribeMachines | RetryIntent


_URGENT = (events.PreemptionNotice, events.NodeDisconnected, events.MachinesDescribed, events.CancelRequested)


def is_urgent(item: object) -> bool:
    """Whether other work yields to `item`: a machine is being or was taken away, or a user requests a cancel."""
    return isinstance(item, JobEvent) and isinstance(item.event, _URGENT)


def work_item_of(result: IntentResult | DescribeResult) -> JobEvent | RetryIntent:
    """The item that follows from the result of a call."""
    if isinstance(result, DescribeResult):
        return JobEvent(result.job_id, result.event)
    intent, outcome = result.intent, result.result
    if isinstance(outcome, RetryLater):
        return RetryIntent(intent, outcome)
    notes: tuple[TimelineEntry, ...] = ()
    if isinstance(outcome.disks, DisksLost | KeptDisks) and outcome.error is not None:
        notes = (TimelineEntry("disks.lost", intent.task, intent.generation, message=outcome.error),)
    return JobEvent(intent.job_id, outcome.event, performed=(intent, outcome), notes=notes)


def complete(event: JobEvent | DescribeMachines) -> None:
    """Complete `event.done`, unless it is complete."""
    if event.done is not None and not event.done.done():
        event.done.set_result(None)


def rebalance_event(key: AttemptKey, rank: int) -> JobEvent:
    """The timeline entry for a rebalance recommendation of a node's cloud."""
    message = "the cloud recommends to move before it takes the machine; its offer counts as less stable"
    return JobEvent(key[0], notes=(TimelineEntry("node.rebalance_recommended", key[1], key[2], rank, message=message),))


def retry_event(intent: Intent, error: str) -> JobEvent:
    """The timeline entry for the first failed try of an intent, or one that changes what becomes of disks."""
    entry = TimelineEntry(f"{intent.kind}.retry", intent.task, intent.generation or None, message=error)
    return JobEvent(intent.job_id, notes=(entry,))


def find_attempt(job: JobView | None, key: AttemptKey) -> AttemptView | None:
    """The attempt; None if it is gone."""
    if job is None or key[1] >= len(job.tasks):
        return None
    return job.tasks[key[1]].attempt(key[2])


def directive_of(job: JobView, key: AttemptKey) -> Directive | None:
    """The directive of an attempt's nodes: STOP for an attempt that is gone.

    None for an attempt that the job has not had: another controller owns the job by now, and has requested it.
    """
    attempt = find_attempt(job, key)
    if attempt is None and key[2] >= job.tasks[key[1]].next_generation:
        return None
    return directive_for(attempt) if attempt else STOP


def changed_directives(before: JobView, after: JobView) -> Iterator[tuple[AttemptKey, Directive]]:
    """The new directive of each attempt whose directive has changed."""
    old = {(t.index, a.generation): a for t in before.tasks for a in t.attempts}
    new = {(t.index, a.generation): a for t in after.tasks for a in t.attempts}
    for key in old.keys() | new.keys():
        was, attempt = old.get(key), new.get(key)
        if was is attempt:
            continue
        directive = directive_for(attempt) if attempt else STOP
        if was is None or directive_for(was) != directive:
            yield (after.id, *key), directive


def concerns_nodes(before: JobView, after: JobView) -> bool:
    """Whether controllers with connections to the nodes must act: a directive changed, or a node disconnected."""
    return next(changed_directives(before, after), None) is not None or len(_disconnected(after)) > len(
        _disconnected(before)
    )


def _disconnected(job: JobView) -> list[NodeView]:
    return [n for t in job.tasks for a in t.attempts for n in a.nodes if n.disconnected_since is not None]


def missing_nodes(job: JobView, connected: Collection[tuple[AttemptKey, int]]) -> list[events.NodeDisconnected]:
    """Events for the nodes that the job records as connected and that are not among `connected`, after a takeover."""
    return [
        events.NodeDisconnected(t.index, a.generation, n.rank)
        for t in job.tasks
        for a in t.attempts
        for n in a.nodes
        if n.connected and ((job.id, t.index, a.generation), n.rank) not in connected
    ]
