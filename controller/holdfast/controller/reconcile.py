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

import structlog
from sqlalchemy import Engine

from holdfast.controller.acting import Later, Outcome
from holdfast.controller.clock import Clock
from holdfast.controller.crashpoints import reach
from holdfast.controller.dispatch import Dispatcher, Performed, Seen
from holdfast.controller.intending import Intending
from holdfast.controller.keyring import AttemptKey
from holdfast.controller.machines import Machines, machines_of
from holdfast.controller.market import Market
from holdfast.controller.outage import Outage
from holdfast.controller.recording import RecordedBefore, Recorder
from holdfast.controller.store import connections, intents, jobs
from holdfast.controller.store.database import UNAVAILABLE, is_away
from holdfast.controller.store.intents import Intent
from holdfast.controller.store.jobs import Claim, LeaseLost
from holdfast.controller.turns import Adopt, Look, Owned, Recheck, attempt_of, resolve, risk_noted, silences
from holdfast.controller.turns import Checkpoint as Checkpoint
from holdfast.controller.turns import Turn as Turn
from holdfast.recovery import actions, events
from holdfast.recovery.actions import Note, Step
from holdfast.recovery.directive import STOP, Directive, directive
from holdfast.recovery.history import at_risk
from holdfast.recovery.job import JobView, Limits, View
from holdfast.recovery.step import step

log = structlog.get_logger(__name__)

# A turn that the database refused is taken again after this long; a job whose decision raised is looked at again later.
_DATABASE_RETRY_S = 1.0
_ERROR_RETRY_S = 30.0
_IDLE_S = 5.0
# The loop comes round at least every `_IDLE_S`: when so much time has passed unseen, the process or its computer slept.
_SLEPT_S = 15.0

OnDirective = Callable[[AttemptKey, Directive], None]
_Timed = Turn | Intent | Adopt | Recheck
_Item = Turn | Adopt | Recheck | Look | Performed | Seen


class Reconciler:
    """Owns the jobs that this daemon claimed. `post`, `adopt` and `directive_of` may be called from any thread.

    `speed`: of `clock` beside the world, in whose seconds pauses after failures are; `limits` are in the clock's.
    """

    def __init__(
        self, *, database: Engine, clock: Clock, market: Market, limits: Limits, intending: Intending, speed: float = 1
    ) -> None:
        self._database = database
        self._clock = clock
        self._market = market
        self._limits = limits
        self._speed = speed
        self._recorder = Recorder(database, market, intending, self._has_open)
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._jobs: dict[int, Owned] = {}
        self._timers: list[tuple[float, int, _Timed]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self._seen_at = clock.now()
        self._paused_until = 0.0
        self._outage = Outage(database, clock)
        self.on_directive: OnDirective = lambda _key, _directive: None
        self.forward: Callable[[Turn], None] = resolve
        self.dispatcher: Dispatcher

    # --- from any thread --------------------------------------------------------------------------------

    def post(self, turn: Turn) -> Future[None]:
        """Have `turn` taken; the future is answered when it is recorded. One for a job that is not ours goes to
        `forward`, which answers it."""
        self._queue.put(turn)
        return turn.done

    def tell(self, job_id: int, event: events.Event) -> None:
        self._queue.put(Turn(job_id, event))

    def adopt(self, claims: Sequence[Claim]) -> Future[None]:
        """Take up jobs that were claimed: their views, their open intents, their wake times."""
        command = Adopt(tuple(claims))
        self._queue.put(command)
        return command.done

    def recheck(self) -> Future[None]:
        """Let go of jobs that others have claimed, before anything more is done for them."""
        command = Recheck()
        self._queue.put(command)
        return command.done

    def answer(self, answer: Performed | Seen) -> None:
        self._queue.put(answer)

    def at_risk(self, key: AttemptKey, rank: int) -> None:
        """A cloud says that a node of the attempt is more likely than usual to be taken: evidence, no order."""
        if (attempt := attempt_of(self.view(key[0]), key)) is not None:
            self._market.advise([at_risk(attempt.offer.key, self._clock.now())])
            self.post(risk_noted(key, rank))

    def look_later(self, key: AttemptKey) -> None:
        """Have the cloud asked about an attempt's machines."""
        self._queue.put(Look(key))

    def database_is_away(self) -> None:
        """Decide nothing before it is back: what nodes had to say could not be heard."""
        self._outage.began()

    def was_deaf_within(self, seconds: float) -> bool:
        """Whether nodes could not be heard, for want of the database, at some time in the world's last `seconds`."""
        return self._outage.was_on_within(seconds * self._speed)

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
        attempt = attempt_of(view, key)
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
        if self._outage.is_on and now >= self._paused_until:
            self._await_database(now)
        if self._timers and self._timers[0][0] <= now:
            self._due(heapq.heappop(self._timers))
            return True
        due_s = max(0.0, self._timers[0][0] - now) / self._speed if self._timers else _IDLE_S
        try:
            item = self._queue.get(block, min(_IDLE_S, due_s))
        except queue.Empty:
            return block
        if item is None:
            return False
        self._take(item)
        return True

    def _notice_sleep(self, now: float) -> None:
        """A controller that slept heard nobody: before any timer says that a node was silent, all are given time."""
        slept_s, self._seen_at = (now - self._seen_at) / self._speed, now
        if slept_s > _SLEPT_S:
            log.warning("controller.slept", seconds=round(slept_s, 1))
            self._give_time(now)

    def _await_database(self, now: float) -> None:
        """A controller without its database heard nobody, either: nodes that call are turned away."""
        away_s = self._outage.ended_after_s()
        if away_s is None:
            self._paused_until = now + _DATABASE_RETRY_S * self._speed
        elif away_s / self._speed > _SLEPT_S:
            log.warning("database.was_away", seconds=round(away_s / self._speed, 1))
            self._give_time(now)

    def _give_time(self, now: float) -> None:
        for job_id, owned in list(self._jobs.items()):
            owned.since = now
            self._take_turn(Turn(job_id))

    def next_due(self) -> float | None:
        """When a timer is due, for whoever takes turns without blocking."""
        return self._timers[0][0] if self._timers else None

    def _due(self, timer: tuple[float, int, _Timed]) -> None:
        at, _, what = timer
        if isinstance(what, Intent):
            if self.dispatcher.knows(what):
                self.dispatcher.perform(what, self._machines(what))
            return
        if isinstance(what, Turn) and what.is_wake:
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
            case Adopt():
                self._take_adoption(item)
            case Recheck():
                self._take_recheck(item)
            case Look(key):
                self._look(key)
            case Seen():
                self._take_turn(Turn(item.job_id, item.event))
            case Performed(intent, Outcome() as outcome):
                self._take_turn(Turn(intent.job_id, outcome.event, performed=(intent, outcome)))
            case Performed(intent, Later() as later):
                self._take_later(intent, later)

    def _take_adoption(self, command: Adopt) -> None:
        new = [claim for claim in command.claims if not self._has(claim)]
        if not new:
            return command.done.set_result(None)
        try:
            with self._database.connect() as conn:
                ids, standing = [claim.job_id for claim in new], jobs.still_standing(conn, new)
                views = jobs.load(conn, ids)
                open_intents = intents.open_intents(conn, ids)
                heard = connections.held(conn, ids, self._clock.now())
        except UNAVAILABLE as error:
            self._try_again(command, error)
            return
        for claim in standing:
            self._jobs[claim.job_id] = Owned(claim, views[claim.job_id], since=self._clock.now())
        self._take_up([intent for intent in open_intents if intent.job_id in self._jobs])
        for claim in (claim for claim in new if claim in standing):
            for event in silences(views[claim.job_id], heard):
                self._take_turn(Turn(claim.job_id, event))
            self._take_turn(Turn(claim.job_id))
        reach("jobs.adopted")
        command.done.set_result(None)

    def _take_recheck(self, command: Recheck) -> None:
        claims = [owned.claim for owned in self._jobs.values()]
        try:
            with self._database.connect() as conn:
                lost = set(claims) - jobs.still_standing(conn, claims)
        except UNAVAILABLE as error:
            self._try_again(command, error)
            return
        for claim in lost:
            log.warning("lease.lost", job=claim.job_id)
            self._drop(claim.job_id)
        command.done.set_result(None)

    def _try_again(self, command: Adopt | Recheck, error: Exception) -> None:
        log.warning("database.refused", error=str(error))
        self._outage.began()
        self._at(self._clock.now() + _DATABASE_RETRY_S * self._speed, command)

    def _take_later(self, intent: Intent, later: Later) -> None:
        if not self.dispatcher.knows(intent):
            return  # the job has gone to another controller
        if later.found is not None:
            self._take_turn(Turn(intent.job_id, later.found))
        wake_at = self._clock.now() + later.after_s * self._speed
        tries = self.dispatcher.tried(intent) if later.was_tried else 0
        if later.error is not None and tries == 1:
            said = Note(f"{intent.kind}.again", intent.task, intent.generation or None, message=later.error)
            self._take_turn(Turn(intent.job_id, notes=(said,)))
        if later.error is not None:
            try:
                with self._database.begin() as conn:
                    intents.tried(conn, intent.id, error=later.error, wake_at=wake_at)
            except UNAVAILABLE as error:
                log.warning("database.refused", error=str(error))
        self._at(wake_at, intent)

    def _take_turn(self, turn: Turn) -> None:
        owned = self._jobs.get(turn.job_id)
        if owned is None:
            self.forward(turn)
            return
        now = self._clock.now()
        if now < self._paused_until:
            self._at(self._paused_until, turn)
            return
        try:
            if owned.is_doubtful:
                self._look_again(owned)
            view = View(owned.view, self._market.view(turn.job_id), self._limits, owned.since)
            decided = step(view, turn.event, now)
            added = self._recorder.record(owned, turn, decided, now)
        except LeaseLost as lost:
            log.warning("lease.lost", job=turn.job_id, why=str(lost))
            self._drop(turn.job_id)
            self.forward(turn)
        except RecordedBefore:
            resolve(turn)
        except Exception as error:
            owned.is_doubtful = True
            if is_away(error):
                log.warning("database.refused", job=turn.job_id, error=str(error))
                self._outage.began()
                self._paused_until = now + _DATABASE_RETRY_S * self._speed
                self._at(self._paused_until, turn)
            else:
                # A bug of ours must not harm the job: it is left as it is, and looked at again.
                log.exception("turn.failed", job=turn.job_id, turn=repr(turn.event))
                self._at(now + _ERROR_RETRY_S * self._speed, turn)
        else:
            self._after(owned, turn, decided, added)
            resolve(turn)

    def _look_again(self, owned: Owned) -> None:
        """Take up what is recorded of a job: a transaction whose end was not heard may have ended well.

        Raises LeaseLost.
        """
        job_id = owned.claim.job_id
        with self._database.connect() as conn:
            if not jobs.still_standing(conn, [owned.claim]):
                raise LeaseLost(f"job {job_id} is settled, or another's")
            view = jobs.load(conn, [job_id])[job_id]
            open_intents = intents.open_intents(conn, [job_id])
        before, owned.view, owned.is_doubtful = owned.view, view, False
        self._take_up([intent for intent in open_intents if not self.dispatcher.knows(intent)])
        self._tell_nodes(before, view)

    def _after(self, owned: Owned, turn: Turn, decided: Step, added: list[Intent] | None) -> None:
        """What was recorded is now true: act on it, and tell the nodes."""
        before, owned.view = owned.view, decided.job
        if decided.wake_at is not None and decided.wake_at != owned.wake_at:
            self._at(decided.wake_at, Turn(owned.view.id, is_wake=True))
        owned.wake_at = decided.wake_at
        waiting = self.dispatcher.settled(turn.performed[0]) if turn.performed else None
        self._take_up(added or [])
        if waiting:
            self.dispatcher.perform(waiting, self._machines(waiting))
        for check in decided.actions:
            if isinstance(check, actions.Check):
                self._look((owned.view.id, check.task, check.generation))
        self._tell_nodes(before, owned.view)
        if added is not None and owned.view.is_settled and not self.dispatcher.has_open(owned.view.id):
            log.info("job.settled", job=owned.view.id)
            reach("job.settled")
            self._drop(owned.view.id)

    def _take_up(self, new: Sequence[Intent]) -> None:
        for intent in new:
            self.dispatcher.take_up(intent)
        for intent in new:
            self.dispatcher.perform(intent, self._machines(intent))

    # --- small parts ------------------------------------------------------------------------------------

    def _at(self, at: float, what: _Timed) -> None:
        heapq.heappush(self._timers, (at, next(self._order), what))

    def _has_open(self, job_id: int, but: int | None) -> bool:
        return self.dispatcher.has_open(job_id, but=but)

    def _has(self, claim: Claim) -> bool:
        owned = self._jobs.get(claim.job_id)
        return owned is not None and owned.claim == claim

    def _drop(self, job_id: int) -> None:
        self._jobs.pop(job_id, None)
        self.dispatcher.forget(job_id)
        self._market.forget_job(job_id)

    def _look(self, key: AttemptKey) -> None:
        attempt = attempt_of(self.view(key[0]), key)
        if attempt is not None:
            self.dispatcher.look(key, attempt.offer, machines_of(attempt))

    def _machines(self, intent: Intent) -> Machines:
        return machines_of(attempt_of(self.view(intent.job_id), (intent.job_id, intent.task, intent.generation)))

    def _tell_nodes(self, before: JobView, after: JobView) -> None:
        told = {(t.index, a.generation): directive(a) for t in before.tasks for a in t.attempts}
        now = {(t.index, a.generation): directive(a) for t in after.tasks for a in t.attempts}
        for place in told.keys() | now.keys():
            wanted = now.get(place, STOP)
            if told.get(place) != wanted:
                self.on_directive((after.id, *place), wanted)
