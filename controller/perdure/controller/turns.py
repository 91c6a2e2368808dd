"""What waits in the reconciler's queue: above all turns, each one thing that happened to one job."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from perdure.controller.acting import Later, Outcome
from perdure.controller.dispatch import Performed, Seen
from perdure.controller.keyring import AttemptKey
from perdure.controller.store.intents import Intent
from perdure.controller.store.jobs import Claim
from perdure.recovery import events
from perdure.recovery.actions import Note
from perdure.recovery.directive import STOP, Directive, directive
from perdure.recovery.job import AttemptView, JobView, NodeView


@dataclass(frozen=True)
class Checkpoint:
    """A node's word on a checkpoint: goes to the timeline once per `seq`."""

    key: AttemptKey
    rank: int
    seq: int
    note: Note


@dataclass(frozen=True)
class Turn:
    """One thing that happened to one job. `done`, where somebody waits for it (`awaited`), is answered once it is
    recorded, or safe with whoever will record it.

    `letter`: the id of the letter that it came by. `is_wake`: set by a timer for the job's wake time, and void once
    that has changed.
    """

    job_id: int
    event: events.Event = field(default_factory=events.Tick)
    performed: tuple[Intent, Outcome] | None = None
    checkpoint: Checkpoint | None = None
    notes: tuple[Note, ...] = ()
    letter: int | None = None
    is_wake: bool = False
    done: Future[None] | None = field(default=None, compare=False)

    def awaited(self) -> tuple[Turn, Future[None]]:
        """The turn as one that is waited for."""
        done: Future[None] = self.done or Future()
        return replace(self, done=done), done


@dataclass(frozen=True)
class Adopt:
    """Jobs to take up, as claimed. `views`: where they were just accepted, and nothing was done for them yet."""

    claims: tuple[Claim, ...]
    views: Mapping[int, JobView] | None = None
    done: Future[None] = field(default_factory=Future, compare=False)


@dataclass(frozen=True)
class Recheck:
    """Others may have claimed some of the jobs in hand."""

    done: Future[None] = field(default_factory=Future, compare=False)


@dataclass(frozen=True)
class Missing:
    """Jobs that were taken up a while ago: whose nodes have not called since is silent."""

    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Look:
    """An attempt whose machines the cloud is to be asked about."""

    key: AttemptKey


@dataclass(frozen=True)
class TryLater:
    """A worker's answer on an intent that settles nothing."""

    intent: Intent
    later: Later


@dataclass
class Owned:
    """A job in hand, `since` then (epoch seconds; the controller that slept begins anew).

    `is_doubtful`: a transaction failed, and may have been recorded all the same.
    """

    claim: Claim
    view: JobView
    since: float
    wake_at: float | None = None
    is_doubtful: bool = False


_PRESSING = (events.NoticeGiven, events.NodeSilent, events.MachinesSeen, events.CancelRequested)


def presses(item: object) -> bool:
    """Whether it is one that others can wait for: a machine that is being taken, or was; a user's word to end a job."""
    return isinstance(item, Turn) and isinstance(item.event, _PRESSING)


def turn_of(answer: Performed | Seen) -> Turn | TryLater:
    """What follows from a worker's answer."""
    if isinstance(answer, Seen):
        return Turn(answer.job_id, answer.event)
    intent, result = answer.intent, answer.result
    if isinstance(result, Later):
        return TryLater(intent, result)
    return Turn(intent.job_id, result.event, performed=(intent, result))


def resolve(turn: Turn) -> None:
    """Answer `turn.done`, if that was not done before."""
    if turn.done is not None and not turn.done.done():
        turn.done.set_result(None)


def risk_noted(key: AttemptKey, rank: int) -> Turn:
    """The timeline's line on a node that its cloud recommends to leave."""
    message = "the cloud recommends to move before it takes the machine; its offer counts as less stable"
    return Turn(key[0], notes=(Note("node.at_risk", key[1], key[2], rank, message=message),))


def attempt_of(job: JobView | None, key: AttemptKey) -> AttemptView | None:
    """The attempt, if it is not gone."""
    if job is None or key[1] >= len(job.tasks):
        return None
    return job.tasks[key[1]].attempt(key[2])


def directive_of(job: JobView, key: AttemptKey) -> Directive:
    """What the attempt's nodes shall do: STOP for one that is gone."""
    attempt = attempt_of(job, key)
    return directive(attempt) if attempt else STOP


def new_directives(before: JobView, after: JobView) -> Iterator[tuple[AttemptKey, Directive]]:
    """What the nodes of each attempt shall do, where that has changed."""
    told = {(t.index, a.generation): directive(a) for t in before.tasks for a in t.attempts}
    now = {(t.index, a.generation): directive(a) for t in after.tasks for a in t.attempts}
    for place in told.keys() | now.keys():
        wanted = now.get(place, STOP)
        if told.get(place) != wanted:
            yield (after.id, *place), wanted


def concerns_nodes(before: JobView, after: JobView) -> bool:
    """Whether whoever holds the nodes' connections is to look: a directive has changed, or a node counts as silent."""
    return next(new_directives(before, after), None) is not None or len(_silent(after)) > len(_silent(before))


def _silent(job: JobView) -> list[NodeView]:
    return [n for t in job.tasks for a in t.attempts for n in a.nodes if n.silent_since is not None]


def silences(job: JobView, heard: Collection[tuple[AttemptKey, int]]) -> list[events.NodeSilent]:
    """After a take-over no node is connected but those `heard`, whatever the rows say."""
    return [
        events.NodeSilent(t.index, a.generation, n.rank)
        for t in job.tasks
        for a in t.attempts
        for n in a.nodes
        if n.connected and ((job.id, t.index, a.generation), n.rank) not in heard
    ]
