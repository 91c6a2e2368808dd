"""The reconcile loop: one thread that takes events one by one, asks `step`, records, and only then acts.

Everything that changes a job comes through here, so each job's history is a line, not a race. Waiting is data: a heap
of wake times, rebuilt from the database, never a sleeping task.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from holdfast.controller.acting import Later, Outcome
from holdfast.controller.clock import Clock
from holdfast.controller.crashpoints import reach
from holdfast.controller.dispatch import Dispatcher, Performed, Seen
from holdfast.controller.intending import Intending
from holdfast.controller.keyring import AttemptKey
from holdfast.controller.market import Market, record_refusals
from holdfast.controller.store import intents, jobs
from holdfast.controller.store.intents import Intent, IntentKind
from holdfast.controller.store.jobs import Claim, LeaseLost
from holdfast.recovery import actions, events
from holdfast.recovery.actions import Note, Step
from holdfast.recovery.directive import STOP, Directive, directive
from holdfast.recovery.job import AttemptView, JobView, Limits, View
from holdfast.recovery.step import step

log = structlog.get_logger(__name__)

# A turn that the database refused is taken again after this long; a job whose decision raised is looked at again later.
_DATABASE_RETRY_S = 1.0
_ERROR_RETRY_S = 30.0
_IDLE_S = 5.0
# The loop comes round at least every `_IDLE_S`: when so much time has passed unseen, the process or its computer slept.
_SLEPT_S = 15.0

OnDirective = Callable[[AttemptKey, Directive], None]


@dataclass(frozen=True)
class Checkpoint:
    """A node's word on a checkpoint: goes to the timeline once per `seq`."""

    key: AttemptKey
    rank: int
    seq: int
    note: Note


@dataclass(frozen=True)
class Turn:
    """One thing that happened to one job. `done` is answered once it is recorded.

    `is_wake`: set by a timer for the job's wake time, and void once that has changed.
    """

    job_id: int
    event: events.Event = field(default_factory=events.Tick)
    performed: tuple[Intent, Outcome] | None = None
    checkpoint: Checkpoint | None = None
    notes: tuple[Note, ...] = ()
    is_wake: bool = False
    done: Future[None] = field(default_factory=Future, compare=False)


@dataclass(frozen=True)
class _Adopt:
    claims: tuple[Claim, ...]
    done: Future[None] = field(default_factory=Future, compare=False)


@dataclass(frozen=True)
class _Look:
    key: AttemptKey


@dataclass
class _Owned:
    claim: Claim
    view: JobView
    wake_at: float | None = None


_Item = Turn | _Adopt | _Look | Performed | Seen


class Reconciler:
    """Owns the jobs that this daemon claimed. `post`, `adopt` and `directive_of` may be called from any thread."""

    def __init__(self, *, database: Engine, clock: Clock, market: Market, limits: Limits, intending: Intending) -> None:
        self._database = database
        self._clock = clock
        self._market = market
        self._limits = limits
        self._intending = intending
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._jobs: dict[int, _Owned] = {}
        self._timers: list[tuple[float, int, Turn | Intent]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self._seen_at = clock.now()
        self.on_directive: OnDirective = lambda _key, _directive: None
        self.dispatcher: Dispatcher

    # --- from any thread --------------------------------------------------------------------------------

    def post(self, turn: Turn) -> Future[None]:
        """Have `turn` taken; the future is answered when it is recorded (at once for a job that is not ours)."""
        self._queue.put(turn)
        return turn.done

    def tell(self, job_id: int, event: events.Event) -> None:
        self._queue.put(Turn(job_id, event))

    def adopt(self, claims: Sequence[Claim]) -> Future[None]:
        """Take up jobs that were claimed: their views, their open intents, their wake times."""
        command = _Adopt(tuple(claims))
        self._queue.put(command)
        return command.done

    def answer(self, answer: Performed | Seen) -> None:
        self._queue.put(answer)

    def look_later(self, key: AttemptKey) -> None:
        """Have the cloud asked about an attempt's machines."""
        self._queue.put(_Look(key))

    def view(self, job_id: int) -> JobView | None:
        owned = self._jobs.get(job_id)
        return owned.view if owned else None

    def owned_views(self) -> list[JobView]:
        return [owned.view for owned in list(self._jobs.values())]

    def directive_of(self, key: AttemptKey) -> Directive | None:
        """What the attempt's nodes shall do: STOP for one that is gone. None: the job is not in this daemon's hands."""
        view = self.view(key[0])
        if view is None:
            return None
        attempt = _attempt(view, key)
        return directive(attempt) if attempt else STOP

    # --- the thread -------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="reconcile", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after what is queued. Jobs stay as they are."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self.turn(block=True):
            pass

    def turn(self, *, block: bool) -> bool:
        """Take one item: what is due first, else what is queued. False once stopped, or when not `block` and idle."""
        now = self._clock.now()
        self._notice_sleep(now)
        if self._timers and self._timers[0][0] <= now:
            self._due(heapq.heappop(self._timers))
            return True
        timeout = max(0.0, self._timers[0][0] - now) if self._timers else _IDLE_S
        try:
            item = self._queue.get(block, timeout)
        except queue.Empty:
            return block
        if item is None:
            return False
        self._take(item)
        return True

    def _notice_sleep(self, now: float) -> None:
        """A controller that slept heard nobody: before any timer says that a node was silent, all are given time."""
        slept_s, self._seen_at = now - self._seen_at, now
        if slept_s > _SLEPT_S:
            log.warning("controller.slept", seconds=round(slept_s, 1))
            for job_id in list(self._jobs):
                self._take_turn(Turn(job_id, events.ControllerBack()))

    def _due(self, timer: tuple[float, int, Turn | Intent]) -> None:
        at, _, what = timer
        if isinstance(what, Intent):
            self.dispatcher.perform(what, self._instances(what))
            return
        if what.is_wake:
            owned = self._jobs.get(what.job_id)
            if owned is None or owned.wake_at != at:
                return  # the job has moved on since
            owned.wake_at = None
            what = Turn(what.job_id)
        self._take(what)

    def _take(self, item: _Item) -> None:
        match item:
            case Turn():
                self._take_turn(item)
            case _Adopt():
                self._take_adoption(item)
            case _Look(key):
                self._look(key)
            case Seen():
                self._take_turn(Turn(item.job_id, item.event))
            case Performed(intent, Outcome() as outcome):
                self._take_turn(Turn(intent.job_id, outcome.event, performed=(intent, outcome)))
            case Performed(intent, Later() as later):
                self._take_later(intent, later)

    def _take_adoption(self, command: _Adopt) -> None:
        ids = [claim.job_id for claim in command.claims]
        try:
            with self._database.connect() as conn:
                views = jobs.load(conn, ids)
                open_intents = intents.open_intents(conn, ids)
        except DBAPIError as error:
            log.warning("database.refused", error=str(error.orig))
            threading.Timer(_DATABASE_RETRY_S, self._queue.put, [command]).start()
            return
        for claim in command.claims:
            self._jobs[claim.job_id] = _Owned(claim, views[claim.job_id])
        for intent in open_intents:
            self.dispatcher.take_up(intent)
        for intent in open_intents:
            self.dispatcher.perform(intent, self._instances(intent))
        for claim in command.claims:
            self._take_turn(Turn(claim.job_id, events.ControllerBack()))
            for event in _silences(views[claim.job_id]):
                self._take_turn(Turn(claim.job_id, event))
            self._take_turn(Turn(claim.job_id))
        reach("jobs.adopted")
        command.done.set_result(None)

    def _take_later(self, intent: Intent, later: Later) -> None:
        wake_at = self._clock.now() + later.after_s
        tries = self.dispatcher.tried(intent)
        if later.error is not None and tries == 1:
            said = Note(f"{intent.kind}.again", intent.task, intent.generation or None, message=later.error)
            self._take_turn(Turn(intent.job_id, notes=(said,)))
        if later.error is not None:
            try:
                with self._database.begin() as conn:
                    intents.tried(conn, intent.id, error=later.error, wake_at=wake_at)
            except DBAPIError as error:
                log.warning("database.refused", error=str(error.orig))
        self._at(wake_at, intent)

    def _take_turn(self, turn: Turn) -> None:
        owned = self._jobs.get(turn.job_id)
        if owned is None:
            _resolve(turn.done)
            return
        now = self._clock.now()
        try:
            decided = step(View(owned.view, self._market.view(turn.job_id), self._limits), turn.event, now)
            added = self._record(owned, turn, decided, now)
        except LeaseLost as lost:
            log.warning("lease.lost", job=turn.job_id, why=str(lost))
            self._drop(turn.job_id)
            _resolve(turn.done)
        except DBAPIError as error:
            log.warning("database.refused", job=turn.job_id, error=str(error.orig))
            self._at(now + _DATABASE_RETRY_S, turn)
        except Exception:
            # A bug of ours must not harm the job: it is left as it is, and looked at again.
            log.exception("turn.failed", job=turn.job_id, turn=repr(turn.event))
            self._at(now + _ERROR_RETRY_S, turn)
        else:
            self._after(owned, turn, decided, added)
            _resolve(turn.done)

    def _record(self, owned: _Owned, turn: Turn, decided: Step, now: float) -> list[Intent] | None:
        """One guarded transaction. Returns the new intents, or None where nothing had to be written."""
        before, after = owned.view, decided.job
        said = turn.notes or turn.performed or turn.checkpoint
        if after == before and not decided.actions and not said:
            return None
        notes = [*turn.notes, *(a for a in decided.actions if isinstance(a, Note))]
        refusals = [a.refusal for a in decided.actions if isinstance(a, actions.Refuse)]
        performed = turn.performed[0].id if turn.performed else None
        with self._database.begin() as conn:
            cancel = after.cancel
            jobs.guard(
                conn,
                owned.claim,
                {
                    "wake_at": decided.wake_at,
                    "cancel_at": cancel.at if cancel else None,
                    "cancel_grace_s": cancel.grace_s if cancel else None,
                },
            )
            jobs.save(conn, before, after, now)
            if turn.performed is not None:
                _close(conn, *turn.performed, now)
            if turn.checkpoint is not None and _is_new(conn, turn.checkpoint):
                notes.append(turn.checkpoint.note)
            jobs.record_notes(conn, after.id, notes, now)
            record_refusals(conn, refusals, after.id, now)
            added = self._intending.write_down(conn, after, decided.actions, now)
            if after.is_settled and not added and not self.dispatcher.has_open(after.id, but=performed):
                added = self._intending.write_down_removal(conn, after, now)
                if not added:
                    jobs.guard(conn, owned.claim, {"settled": True})
                    reach("job.settling")
            reach("turn.recording")
        reach("turn.recorded")
        self._market.remember(refusals, after.id)
        return added

    def _after(self, owned: _Owned, turn: Turn, decided: Step, added: list[Intent] | None) -> None:
        """What was recorded is now true: act on it, and tell the nodes."""
        before, owned.view = owned.view, decided.job
        _reach_recorded(turn)
        if decided.wake_at is not None and decided.wake_at != owned.wake_at:
            self._at(decided.wake_at, Turn(owned.view.id, is_wake=True))
        owned.wake_at = decided.wake_at
        waiting = self.dispatcher.settled(turn.performed[0]) if turn.performed else None
        for intent in added or []:
            self.dispatcher.take_up(intent)
        for intent in [*(added or []), *([waiting] if waiting else [])]:
            self.dispatcher.perform(intent, self._instances(intent))
        for check in decided.actions:
            if isinstance(check, actions.Check):
                self._look((owned.view.id, check.task, check.generation))
        self._tell_nodes(before, owned.view)
        if added is not None and owned.view.is_settled and not self.dispatcher.has_open(owned.view.id):
            log.info("job.settled", job=owned.view.id)
            reach("job.settled")
            self._drop(owned.view.id)

    # --- small parts ------------------------------------------------------------------------------------

    def _at(self, at: float, what: Turn | Intent) -> None:
        heapq.heappush(self._timers, (at, next(self._order), what))

    def _drop(self, job_id: int) -> None:
        self._jobs.pop(job_id, None)
        self.dispatcher.forget(job_id)
        self._market.forget_job(job_id)

    def _look(self, key: AttemptKey) -> None:
        attempt = _attempt(self.view(key[0]), key)
        if attempt is not None:
            self.dispatcher.look(key, attempt.offer, _instances(attempt))

    def _instances(self, intent: Intent) -> list[tuple[int, str]]:
        attempt = _attempt(self.view(intent.job_id), (intent.job_id, intent.task, intent.generation))
        return _instances(attempt) if attempt else []

    def _tell_nodes(self, before: JobView, after: JobView) -> None:
        told = {(t.index, a.generation): directive(a) for t in before.tasks for a in t.attempts}
        now = {(t.index, a.generation): directive(a) for t in after.tasks for a in t.attempts}
        for place in told.keys() | now.keys():
            wanted = now.get(place, STOP)
            if told.get(place) != wanted:
                self.on_directive((after.id, *place), wanted)


def _resolve(done: Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def _close(conn: Connection, intent: Intent, outcome: Outcome, now: float) -> None:
    intents.close(conn, intent.id, outcome=outcome.result, error=outcome.error, now=now)
    if intent.kind in (IntentKind.LAUNCH, IntentKind.TERMINATE):
        jobs.record_lifetimes(conn, (intent.job_id, intent.task, intent.generation), outcome.lifetimes)
    reach("intent.closing")


def _is_new(conn: Connection, checkpoint: Checkpoint) -> bool:
    reach("checkpoint.recording")
    return jobs.advance_checkpoint_seq(conn, checkpoint.key, checkpoint.rank, checkpoint.seq)


def _reach_recorded(turn: Turn) -> None:
    if turn.performed is not None:
        reach("intent.closed")
    if turn.checkpoint is not None:
        reach("checkpoint.recorded")


def _attempt(job: JobView | None, key: AttemptKey) -> AttemptView | None:
    if job is None or key[1] >= len(job.tasks):
        return None
    return job.tasks[key[1]].attempt(key[2])


def _instances(attempt: AttemptView) -> list[tuple[int, str]]:
    return [(n.rank, n.instance_id) for n in attempt.nodes if n.instance_id is not None]


def _silences(job: JobView) -> list[events.NodeSilent]:
    """After a restart no node is connected, whatever the rows say."""
    return [
        events.NodeSilent(t.index, a.generation, n.rank)
        for t in job.tasks
        for a in t.attempts
        for n in a.nodes
        if n.connected
    ]
