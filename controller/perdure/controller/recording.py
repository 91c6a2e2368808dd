"""How decisions are written down: one guarded transaction for all that wait, before anything outside is touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import Connection, Engine

from perdure.controller.acting import Later, Outcome
from perdure.controller.crashpoints import reach
from perdure.controller.intending import Intending
from perdure.controller.market import Market, record_refusals, record_sightings
from perdure.controller.store import intents, jobs, letters, wake
from perdure.controller.store.database import UNAVAILABLE
from perdure.controller.store.intents import Intent, IntentKind
from perdure.controller.store.wake import Topic
from perdure.controller.store.writes import Writes
from perdure.controller.turns import Checkpoint, Owned, Turn, concerns_nodes
from perdure.recovery import actions
from perdure.recovery.actions import Note, Step
from perdure.recovery.history import Sighting
from perdure.recovery.market import Refusal

log = structlog.get_logger(__name__)


class RecordedBefore(Exception):
    """The turn came by a letter that is gone."""


@dataclass(frozen=True)
class Decision:
    """What was decided on a turn of a job in hand."""

    owned: Owned
    turn: Turn
    step: Step

    @property
    def is_news(self) -> bool:
        """Whether anything of it has to be written."""
        turn, before, after = self.turn, self.owned.view, self.step.job
        said = turn.notes or turn.performed or turn.checkpoint or turn.letter is not None
        return bool(after != before or self.step.actions or said or after.is_settled)

    @property
    def concerns_nodes(self) -> bool:
        return concerns_nodes(self.owned.view, self.step.job)

    @property
    def refusals(self) -> list[Refusal]:
        return [a.refusal for a in self.step.actions if isinstance(a, actions.Refuse)]

    @property
    def sightings(self) -> list[Sighting]:
        return [a.sighting for a in self.step.actions if isinstance(a, actions.Learn)]

    @property
    def columns(self) -> dict[str, float | None]:
        """What the guard of its job writes."""
        cancel = self.step.job.cancel
        return {
            "wake_at": self.step.wake_at,
            "cancel_at": cancel.at if cancel else None,
            "cancel_grace_s": cancel.grace_s if cancel else None,
        }


@dataclass(eq=False)
class Recorder:
    """Records decisions and what follows from them. `has_open(job, but)`: whether the job has intents that are not
    closed, but for one."""

    database: Engine
    market: Market
    intending: Intending
    has_open: Callable[[int, int | None], bool]

    def record(self, decisions: Sequence[Decision], now: float) -> list[list[Intent] | None]:
        """One guarded transaction for decisions on as many jobs. Returns each one's new intents, or None where nothing
        had to be written.

        Raises LeaseLost, RecordedBefore, and what the database raises; then nothing has changed.
        """
        news = [decision for decision in decisions if decision.is_news]
        added: dict[int, list[Intent]] = {}
        if news:
            added = self._record(news, now)
        return [added.get(decision.step.job.id) for decision in decisions]

    def _record(self, news: Sequence[Decision], now: float) -> dict[int, list[Intent]]:
        """Returns the new intents of each job."""
        with self.database.begin() as conn:
            writes = Writes(conn)
            if not letters.take(conn, [d.turn.letter for d in news if d.turn.letter is not None]):
                raise RecordedBefore
            jobs.guard_all(conn, [(decision.owned.claim, decision.columns) for decision in news])
            added = {decision.step.job.id: self._write(writes, decision, now) for decision in news}
            refused = [(d.step.job.id, r) for d in news for r in d.refusals if self.market.is_news(r)]
            record_refusals(writes, refused, now)
            record_sightings(writes, [sighting for d in news for sighting in d.sightings], now)
            writes.flush()
            wake.notify_all(conn, Topic.JOB, [d.step.job.id for d in news if d.concerns_nodes])
            reach("turn.recording")
        for decision in news:
            reach("turn.recorded")
            _reach_recorded(decision.turn)
            self.market.remember(decision.refusals, decision.step.job.id)
            self.market.learn(decision.sightings)
        return added

    def tried(self, intent: Intent, later: Later, wake_at: float) -> None:
        """Keep what a try said that settled nothing; where that can not be kept, the next one says it again."""
        if later.error is None:
            return
        try:
            with self.database.begin() as conn:
                intents.tried(conn, intent.id, error=later.error, wake_at=wake_at)
        except UNAVAILABLE as error:
            log.warning("database.refused", error=str(error))

    def _write(self, writes: Writes, decision: Decision, now: float) -> list[Intent]:
        turn, before, after = decision.turn, decision.owned.view, decision.step.job
        conn = writes.conn
        notes = [*turn.notes, *(a for a in decision.step.actions if isinstance(a, Note))]
        jobs.save(writes, before, after, now)
        if turn.performed is not None:
            _close(writes, *turn.performed, now)
        if turn.checkpoint is not None and _is_new(conn, turn.checkpoint):
            notes.append(turn.checkpoint.note)
        jobs.record_notes(writes, after.id, notes, now)
        added = self.intending.write_down(conn, after, decision.step.actions, now)
        performed = turn.performed[0].id if turn.performed else None
        if after.is_settled and not added and not self.has_open(after.id, performed):
            added = self.intending.write_down_removal(conn, after, now)
            if not added:
                jobs.settle(writes, after.id)
                reach("job.settling")
        return added


def _close(writes: Writes, intent: Intent, outcome: Outcome, now: float) -> None:
    intents.close(writes, intent.id, outcome=outcome.result, error=outcome.error, now=now)
    if intent.kind in (IntentKind.LAUNCH, IntentKind.TERMINATE):
        jobs.record_lifetimes(writes, (intent.job_id, intent.task, intent.generation), outcome.lifetimes)
    reach("intent.closing")


def _is_new(conn: Connection, checkpoint: Checkpoint) -> bool:
    reach("checkpoint.recording")
    if jobs.advance_checkpoint_seq(conn, checkpoint.key, checkpoint.rank, checkpoint.seq):
        return True
    # Said again, or overtaken: it came by a letter, and a later one to its job's next owner itself.
    return not jobs.is_noted(conn, checkpoint.key[0], checkpoint.note)


def _reach_recorded(turn: Turn) -> None:
    if turn.performed is not None:
        reach("intent.closed")
    if turn.checkpoint is not None:
        reach("checkpoint.recorded")
