"""How a decision is written down: one guarded transaction per turn, before anything outside is touched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, Engine

from holdfast.controller.acting import Outcome
from holdfast.controller.crashpoints import reach
from holdfast.controller.intending import Intending
from holdfast.controller.market import Market, record_refusals, record_sightings
from holdfast.controller.store import intents, jobs, letters, wake
from holdfast.controller.store.intents import Intent, IntentKind
from holdfast.controller.store.wake import Topic
from holdfast.controller.turns import Checkpoint, Owned, Turn
from holdfast.recovery import actions
from holdfast.recovery.actions import Note, Step


class RecordedBefore(Exception):
    """The turn came by a letter that is gone."""


@dataclass(eq=False)
class Recorder:
    """Records turns and what follows from them. `has_open(job, but)`: whether the job has intents that are not closed,
    but for one."""

    database: Engine
    market: Market
    intending: Intending
    has_open: Callable[[int, int | None], bool]

    def record(self, owned: Owned, turn: Turn, decided: Step, now: float) -> list[Intent] | None:
        """One guarded transaction. Returns the new intents, or None where nothing had to be written.

        Raises LeaseLost, RecordedBefore, and what the database raises; then nothing has changed.
        """
        before, after = owned.view, decided.job
        said = turn.notes or turn.performed or turn.checkpoint or turn.letter is not None
        if after == before and not decided.actions and not said and not after.is_settled:
            return None
        notes = [*turn.notes, *(a for a in decided.actions if isinstance(a, Note))]
        refusals = [a.refusal for a in decided.actions if isinstance(a, actions.Refuse)]
        sightings = [a.sighting for a in decided.actions if isinstance(a, actions.Learn)]
        performed = turn.performed[0].id if turn.performed else None
        with self.database.begin() as conn:
            if turn.letter is not None and not letters.take(conn, turn.letter):
                raise RecordedBefore
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
            record_sightings(conn, sightings, now)
            added = self.intending.write_down(conn, after, decided.actions, now)
            if after.is_settled and not added and not self.has_open(after.id, performed):
                added = self.intending.write_down_removal(conn, after, now)
                if not added:
                    jobs.guard(conn, owned.claim, {"settled": True})
                    reach("job.settling")
            wake.notify(conn, Topic.JOB, after.id)
            reach("turn.recording")
        reach("turn.recorded")
        _reach_recorded(turn)
        self.market.remember(refusals, after.id)
        self.market.learn(sightings)
        return added


def _close(conn: Connection, intent: Intent, outcome: Outcome, now: float) -> None:
    intents.close(conn, intent.id, outcome=outcome.result, error=outcome.error, now=now)
    if intent.kind in (IntentKind.LAUNCH, IntentKind.TERMINATE):
        jobs.record_lifetimes(conn, (intent.job_id, intent.task, intent.generation), outcome.lifetimes)
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
