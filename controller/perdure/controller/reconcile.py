"""The reconcile loop: one thread that takes events one by one, asks `step`, records, and only then acts.

Everything that changes a job comes through here, so each job's history is a line, not a race. Waiting is data: a heap
of wake times, rebuilt from the database, never a sleeping task.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from sqlalchemy import Engine

from perdure.controller import adopting, crowd, turns
from perdure.controller.acting import Later
from perdure.controller.agenda import Nothing
from perdure.controller.clock import Clock
from perdure.controller.courtesy import Courtesy
from perdure.controller.crashpoints import reach
from perdure.controller.desk import Desk, Item, Timed
from perdure.controller.dispatch import Dispatcher
from perdure.controller.intending import Intending
from perdure.controller.keyring import AttemptKey
from perdure.controller.machines import Machines, machines_of
from perdure.controller.market import Market
from perdure.controller.outage import Sleep
from perdure.controller.recording import Decision, RecordedBefore, Recorder
from perdure.controller.store.database import UNAVAILABLE, is_away
from perdure.controller.store.intents import Intent
from perdure.controller.store.jobs import Claim, LeaseLost
from perdure.controller.turns import Adopt, Look, Missing, Owned, Recheck, TryLater, Turn, resolve
from perdure.recovery import actions
from perdure.recovery.actions import Note
from perdure.recovery.attempts import CALL_BACK_S
from perdure.recovery.job import JobView, Limits, View
from perdure.recovery.step import step

log = structlog.get_logger(__name__)

# A turn that the database refused is taken again after this long; a job whose decision raised is looked at again later.
_DATABASE_RETRY_S = 1.0
_ERROR_RETRY_S = 30.0
_IDLE_S = 5.0
# With so much to do it stands back for nobody: with twice that, new jobs are refused.
_MUCH = 2_500
# So many turns that wait are recorded in one transaction; a longer one would keep others from the database for long.
_MOST_AT_ONCE = 64
# The loop comes round at least every `_IDLE_S`: when so much time has passed unseen, the process or its computer slept.
_SLEPT_S = 15.0


class Reconciler(Desk):
    """Owns the jobs that this daemon claimed. What others may call is the desk's; the rest is its thread's.

    `speed`: of `clock` beside the world, in whose seconds pauses after failures are; `limits` are in the clock's.
    `most_at_once`: how many turns, of as many jobs, are recorded together at most.
    """

    def __init__(
        self, *, database: Engine, clock: Clock, market: Market, limits: Limits, intending: Intending, speed: float = 1
    ) -> None:
        super().__init__(database, clock, market, speed)
        self._database = database
        self._limits = limits
        self.most_at_once = _MOST_AT_ONCE
        self._decided: dict[int, Decision] = {}
        self._aside: list[Item] = []  # what came for jobs that have a decision waiting, and all commands behind it
        self._recorder = Recorder(database, market, intending, lambda job, but: self.dispatcher.has_open(job, but=but))
        self._sleep = Sleep(clock, speed)
        self._paused_until = 0.0
        self._was_due = False
        self.dispatcher: Dispatcher

    def start(self, courtesy: Courtesy) -> None:
        """Begin the thread. It stands back for those to whom `courtesy` is due, unless machines are in danger or much
        waits already."""

        def turn() -> bool:
            goes_on = self.turn(block=True)
            if not self._agenda.is_pressed and self._agenda.backlog() < _MUCH:
                courtesy.give_way()
            return goes_on

        self._agenda.begin("reconcile", turn)

    def stop(self) -> None:
        """End the thread after what is queued. Jobs stay as they are."""
        self._agenda.end()

    def turn(self, *, block: bool) -> bool:
        """Take one item, of what is due or of what is queued, and what waits behind it. False once stopped, or when not
        `block` and idle."""
        goes_on = self._take_next(block=block)
        for _ in range(2 * self.most_at_once - 1):
            if not goes_on or not self._decided or not self._agenda.has_more:
                break
            goes_on = self._take_next(block=False)
        self._record()
        return goes_on

    def _take_next(self, *, block: bool) -> bool:
        now = self._clock.now()
        if self._sleep.is_over(now):
            self._give_time(now)
        if self._outage.is_on and now >= self._paused_until:
            self._await_database(now)
        # In turn, where both wait: however many times have come, what comes in is heard.
        if not (self._was_due and self._agenda.has_queued) and (due := self._agenda.due()) is not None:
            self._was_due = True
            self._due(*due)
            return True
        self._was_due = False
        try:
            item = self._agenda.next(block=block)
        except Nothing:
            return block
        if item is None:
            return False
        self._take(item)
        return True

    def _await_database(self, now: float) -> None:
        if not self._outage.ends():
            self._paused_until = now + _DATABASE_RETRY_S * self._speed
        elif self._outage.was_long:
            self._give_time(now)

    def _give_time(self, now: float) -> None:
        """Nobody was heard for a while: before any timer says that a node was silent, all are given time."""
        for job_id, owned in list(self._jobs.items()):
            owned.since = now
            self._take_turn(Turn(job_id))

    def next_due(self) -> float | None:
        """When a timer is due, for whoever takes turns without blocking."""
        return self._agenda.next_due

    def _due(self, at: float, what: Timed) -> None:
        if isinstance(what, Intent):
            self._record_first(what.job_id)
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

    def _take(self, item: Item) -> None:
        match item:
            case Look(key):
                self._look(key)
            case Turn() if item.job_id in self._decided:
                self._aside.append(item)  # it must see what comes of the one before; others need not wait for that
            case Turn():
                self._take_turn(item)
            case _ if self._aside:
                self._aside.append(item)
                self._record()
            case Adopt():
                self._take_adoption(item)
            case Recheck():
                self._take_recheck(item)
            case Missing():
                self._take_missing(item)
            case TryLater(intent, later):
                self._take_later(intent, later)

    def _take_adoption(self, command: Adopt) -> None:
        for claim in command.claims:
            self._record_first(claim.job_id)
        # One that was accepted and then claimed anew is known by its later claim.
        new = [c for c in command.claims if not (c.job_id in self._jobs if command.views else self._has(c))]
        if not new:
            return command.done.set_result(None)
        try:
            found = adopting.new(new, command.views) if command.views else adopting.read(self._database, new)
        except UNAVAILABLE as error:
            self._try_again(command, error)
            return
        now = self._clock.now()
        for claim in found.standing:
            self._jobs[claim.job_id] = Owned(claim, found.views[claim.job_id], since=now)
        self._take_up([intent for intent in found.open_intents if intent.job_id in self._jobs])
        taken_up = tuple(claim for claim in new if claim in found.standing)
        for claim in taken_up:
            self._take_turn(Turn(claim.job_id))
        connected = tuple(claim for claim in taken_up if turns.silences(found.views[claim.job_id], ()))
        if connected:
            call_back_s = CALL_BACK_S + crowd.calls_within_s(len(self._jobs))
            self._at(now + call_back_s * self._speed, Missing(connected))
        reach("jobs.adopted")
        command.done.set_result(None)

    def _take_missing(self, missing: Missing) -> None:
        claims = [claim for claim in missing.claims if self._has(claim)]
        try:
            heard = adopting.heard(self._database, claims, self._clock.now())
        except UNAVAILABLE as error:
            self._try_again(missing, error)
            return
        for claim in claims:
            for event in turns.silences(self._jobs[claim.job_id].view, heard):
                self._take_turn(Turn(claim.job_id, event))

    def _take_recheck(self, command: Recheck) -> None:
        self._record()
        claims = [owned.claim for owned in self._jobs.values()]
        try:
            lost = set(claims) - set(adopting.standing(self._database, claims))
        except UNAVAILABLE as error:
            self._try_again(command, error)
            return
        for claim in lost:
            log.warning("lease.lost", job=claim.job_id)
            self._drop(claim.job_id)
        command.done.set_result(None)

    def _try_again(self, command: Adopt | Recheck | Missing, error: Exception) -> None:
        log.warning("database.refused", error=str(error))
        self._outage.began()
        self._at(self._clock.now() + _DATABASE_RETRY_S * self._speed, command)

    def _take_later(self, intent: Intent, later: Later) -> None:
        self._record_first(intent.job_id)
        if not self.dispatcher.knows(intent):
            return  # the job has gone to another controller
        if later.found is not None:
            self._take_turn(Turn(intent.job_id, later.found))
        wake_at = self._clock.now() + later.after_s * self._speed
        tries = self.dispatcher.tried(intent) if later.was_tried else 0
        if later.error is not None and tries == 1:
            said = Note(f"{intent.kind}.again", intent.task, intent.generation or None, message=later.error)
            self._take_turn(Turn(intent.job_id, notes=(said,)))
        self._recorder.tried(intent, later, wake_at)
        self._at(wake_at, intent)

    def _take_turn(self, turn: Turn) -> None:
        """Decide on a turn. What was decided counts when it is recorded, together with others'."""
        self._record_first(turn.job_id)
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
            self._decided[turn.job_id] = Decision(owned, turn, step(view, turn.event, now))
        except Exception as error:  # noqa: BLE001 - told apart there
            self._failed(owned, turn, error, now)
        if len(self._decided) >= self.most_at_once:
            self._record()

    def _record_first(self, job_id: int) -> None:
        """What was decided for the job comes before what follows."""
        if job_id in self._decided:
            self._record()

    def _record(self) -> None:
        """Record all that was decided, and act on it. What can not be recorded together is taken again, one by one."""
        decided, self._decided = list(self._decided.values()), {}
        self._agenda.put_back(self._aside)
        self._aside = []
        if not decided:
            return
        now = self._clock.now()
        try:
            added = self._recorder.record(decided, now)
        except Exception as error:  # noqa: BLE001 - told apart there
            if len(decided) == 1 or is_away(error):
                for decision in decided:
                    self._failed(decision.owned, decision.turn, error, now)
                return
            for decision in decided:  # nothing was written
                self._take_turn(decision.turn)
                self._record()
        else:
            for decision, intents_added in zip(decided, added, strict=True):
                self._after(decision, intents_added)
                resolve(decision.turn)

    def _failed(self, owned: Owned, turn: Turn, error: Exception, now: float) -> None:
        """The turn was not recorded, as far as is known."""
        if isinstance(error, RecordedBefore):
            return resolve(turn)
        if isinstance(error, LeaseLost):
            log.warning("lease.lost", job=turn.job_id, why=str(error))
            self._drop(turn.job_id)
            return self.forward(turn)
        owned.is_doubtful = True
        if is_away(error):
            log.warning("database.refused", job=turn.job_id, error=str(error))
            self._outage.began()
            self._paused_until = now + _DATABASE_RETRY_S * self._speed
            self._at(self._paused_until, turn)
        else:
            # A bug of ours must not harm the job: it is left as it is, and looked at again.
            log.error("turn.failed", job=turn.job_id, turn=repr(turn.event), exc_info=error)
            self._at(now + _ERROR_RETRY_S * self._speed, turn)

    def _look_again(self, owned: Owned) -> None:
        """Take up what is recorded of a job: a transaction whose end was not heard may have ended well.

        Raises LeaseLost.
        """
        view, open_intents = adopting.read_again(self._database, owned.claim)
        before, owned.view, owned.is_doubtful = owned.view, view, False
        self._take_up([intent for intent in open_intents if not self.dispatcher.knows(intent)])
        self._tell_nodes(before, view)

    def _after(self, decision: Decision, added: list[Intent] | None) -> None:
        """What was recorded is now true: act on it, and tell the nodes."""
        owned, turn, decided = decision.owned, decision.turn, decision.step
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

    def _at(self, at: float, what: Timed) -> None:
        self._agenda.at(at, what)

    def _has(self, claim: Claim) -> bool:
        return (owned := self._jobs.get(claim.job_id)) is not None and owned.claim == claim

    def _drop(self, job_id: int) -> None:
        self._jobs.pop(job_id, None)
        self.dispatcher.forget(job_id)
        self._market.forget_job(job_id)

    def _look(self, key: AttemptKey) -> None:
        attempt = turns.attempt_of(self.view(key[0]), key)
        if attempt is not None:
            self.dispatcher.look(key, attempt.offer, machines_of(attempt))

    def _machines(self, intent: Intent) -> Machines:
        return machines_of(turns.attempt_of(self.view(intent.job_id), (intent.job_id, intent.task, intent.generation)))

    def _tell_nodes(self, before: JobView, after: JobView) -> None:
        for key, wanted in turns.new_directives(before, after):
            self.on_directive(key, wanted)
