"""Known mistakes, each planted into the real code: a simulation that does not find one of them has gone blind.

A mistake is a function that is handed a `pytest.MonkeyPatch` and spoils something. Each stands for a bug that a change
to the controller could bring.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update

from faultworld.scenario import FAULTS, Scenario, scenario_of
from perdure.controller import (
    acting,
    attendance,
    channel,
    intending,
    mail,
    nodelogs,
    nodespec,
    ownership,
    reconcile,
    recording,
    rounds,
    sweep,
    turns,
)
from perdure.controller.acting import Actor, Later, Outcome
from perdure.controller.store import buckets, intents, jobs, letters
from perdure.recovery import events, observe, settle
from perdure.recovery.directive import STOP
from perdure.recovery.job import AttemptView

Patch = pytest.MonkeyPatch
MISTAKES: dict[str, Callable[[Patch], None]] = {}
# Those that one controller alone can not make, or that harm nobody but another.
OF_SEVERAL = {"the_guard_ignores_the_epoch", "whom_we_do_not_know_is_told_to_stop"}

# Some mistakes show under few kinds of faults only: histories that look for them have no others.
SHOWN_BY: dict[str, tuple[str, ...]] = {
    "an_unknown_result_is_taken_for_no_capacity": ("lost-answers", "partial-launch", "outage"),
    "a_new_start_takes_nodes_for_connected": ("agent-vanish", "stop", "kill"),
    "the_guard_ignores_the_epoch": ("freeze", "take-over"),
    "a_failed_rank_is_blamed_at_once": ("preempt", "crash"),
    "a_failed_rank_is_blamed_on_its_clouds_word": ("forget",),
    "a_broken_line_ends_the_wait_for_a_log": ("break",),
    "an_append_ignores_the_offset": ("repeat", "break"),
    "whom_we_do_not_know_is_told_to_stop": ("freeze", "take-over", "break"),
    "an_outage_counts_against_the_nodes": ("database-down",),
}


def _mistake(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MISTAKES[plant.__name__] = plant
    return plant


def _mistake_of_several(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    OF_SEVERAL.add(plant.__name__)
    return _mistake(plant)


def shows(name: str, seed: int) -> Scenario:
    """A history that may show the mistake: of its kind, and of no more controllers than it takes."""
    number = (2, 3) if name in OF_SEVERAL else (0,)
    return scenario_of(seed, kinds=SHOWN_BY.get(name, tuple(FAULTS)), controllers=number)


# --- outside calls ------------------------------------------------------------------------------------


@_mistake
def a_new_token_for_each_try(patch: Patch) -> None:
    real, tries = Actor._request, itertools.count()

    def request(self: Actor, intent: Any) -> Any:
        made = real(self, intent)
        return replace(made, owner=replace(made.owner, token=f"{made.owner.token}-{next(tries)}"))

    patch.setattr(Actor, "_request", request)


@_mistake
def the_same_token_for_every_attempt(patch: Patch) -> None:
    patch.setattr(intending.Intending, "_token", lambda self, job, task, generation: f"{job}-{task}")


@_mistake
def act_before_record(patch: Patch) -> None:
    """The machine is bought, and only then written down."""
    real = intending.Intending.write_down

    def write_down(self: Any, conn: Any, job: Any, wanted: Any, now: float) -> Any:
        written = real(self, conn, job, wanted, now)
        for intent in written:
            if intent.kind is intents.IntentKind.LAUNCH:
                actor = conn.info["actor"]
                with suppress(Exception):
                    actor.clouds[intent.request["offer"]["cloud"]].launch(actor._request(intent))
        return written

    take, real_record = {}, recording.Recorder.record

    def record(self: Any, owned: Any, turn: Any, decided: Any, now: float) -> Any:
        take["actor"] = self.has_open.__self__.dispatcher.actor
        return real_record(self, owned, turn, decided, now)

    def with_actor(self: Any, conn: Any, job: Any, wanted: Any, now: float) -> Any:
        conn.info["actor"] = take["actor"]
        return write_down(self, conn, job, wanted, now)

    patch.setattr(recording.Recorder, "record", record)
    patch.setattr(intending.Intending, "write_down", with_actor)


@_mistake
def a_termination_is_asked_for_once(patch: Patch) -> None:
    real = Actor._terminate

    def terminate(self: Actor, intent: Any, machines: Any, tries: int) -> Any:
        answer = real(self, intent, machines, tries)
        gone = events.AttemptGone(intent.task, intent.generation)
        return Outcome("gone", gone) if isinstance(answer, Later) else answer

    patch.setattr(Actor, "_terminate", terminate)


@_mistake
def an_unknown_result_is_taken_for_no_capacity(patch: Patch) -> None:
    patch.setattr(acting, "_MOST_UNKNOWN", 0)
    real = Actor._launch_failed

    def failed(self: Actor, *args: Any) -> Any:
        answer = real(self, *args)
        return replace(answer, event=replace(answer.event, may_exist=False)) if isinstance(answer, Outcome) else answer

    patch.setattr(Actor, "_launch_failed", failed)


@_mistake
def what_is_not_shown_yet_is_gone(patch: Patch) -> None:
    patch.setattr(acting, "VISIBLE_WITHIN_S", 0.0)


@_mistake
def lifetimes_are_not_recorded(patch: Patch) -> None:
    patch.setattr(jobs, "record_lifetimes", lambda *_: None)


@_mistake
def a_bucket_goes_with_the_first_of_its_jobs(patch: Patch) -> None:
    patch.setattr(buckets, "_used_by_another", lambda *_: False)


@_mistake
def a_bucket_is_its_makers_alone(patch: Patch) -> None:
    patch.setattr(intending, "removable", lambda *said: [b for b in buckets.removable(*said) if b.created])


@_mistake_of_several
def the_sweep_reads_what_it_believes_first(patch: Patch) -> None:
    def run(self: sweep.Sweep) -> int:
        for cloud in self.clouds.values():
            known = {(j.id, t.index, a.generation) for j in self.views() for t in j.tasks for a in t.attempts}
            try:
                listed = cloud.list_owned(self.controller)
                for instance in listed:
                    if sweep._key(instance) not in known:
                        cloud.terminate(instance.region, [instance.id])
            except Exception:
                continue
        return 0

    patch.setattr(sweep.Sweep, "run", run)


# --- the lease, the database, a new start ----------------------------------------------------------------


@_mistake
def the_guard_ignores_the_epoch(patch: Patch) -> None:
    def guard_all(conn: Any, wanted: Sequence[tuple[Any, Mapping[str, Any]]]) -> None:
        for claim, columns in wanted:
            conn.execute(update(jobs.Job).where(jobs.Job.c.id == claim.job_id).values(**columns))

    patch.setattr(jobs, "guard_all", guard_all)


@_mistake
def adoption_forgets_open_intents(patch: Patch) -> None:
    patch.setattr(intents, "open_intents", lambda conn, ids: [])


@_mistake
def a_new_start_takes_nodes_for_connected(patch: Patch) -> None:
    patch.setattr("perdure.controller.turns.silences", lambda job, heard: [])


@_mistake
def time_away_counts_against_the_nodes(patch: Patch) -> None:
    patch.setattr("perdure.recovery.job.View.patience_from", lambda self, at: at)


@_mistake
def what_the_database_refused_is_dropped(patch: Patch) -> None:
    real = reconcile.Reconciler._at

    def at(self: Any, when: float, what: Any) -> None:
        if not (isinstance(what, reconcile.Turn) and when == self._paused_until and not what.is_wake):
            real(self, when, what)

    patch.setattr(reconcile.Reconciler, "_at", at)


@_mistake
def the_task_id_is_made_anew_for_each_attempt(patch: Patch) -> None:
    real = nodespec._variables

    def variables(row: Any, key: Any, ids: Any) -> dict[str, str]:
        return {**real(row, key, ids), "SKYPILOT_TASK_ID": f"{row['task_id']}-{key[2]}"}

    patch.setattr(nodespec, "_variables", variables)


# --- decisions ---------------------------------------------------------------------------------------------


@_mistake
def the_next_runs_before_the_last_has_stopped(patch: Patch) -> None:
    patch.setattr(AttemptView, "may_run_workload", property(lambda self: False))


@_mistake
def a_users_error_counts_as_a_recovery(patch: Patch) -> None:
    real = settle.fail

    def fail(task: Any, ctx: Any) -> Any:
        after = real(task, ctx)
        restarts = after is not None and after.outcome is None and "RESTART" in after.reason.name
        return replace(after, recovery_count=after.recovery_count + 1) if restarts else after

    _replace_rule(patch, "fail", fail)


@_mistake
def each_notice_counts(patch: Patch) -> None:
    real = observe._node_event

    def node_event(job: Any, event: Any, now: float, out: Any) -> Any:
        after = real(job, event, now, out)
        if isinstance(event, events.NoticeGiven):
            task = after.tasks[event.task]
            after = after.with_task(replace(task, recovery_count=task.recovery_count + 1))
        return after

    patch.setattr(observe, "_node_event", node_event)


@_mistake
def a_failed_rank_is_blamed_at_once(patch: Patch) -> None:
    patch.setattr(settle, "_peers_are_alive", lambda attempt: True)


@_mistake
def a_failed_rank_is_blamed_on_its_clouds_word(patch: Patch) -> None:
    patch.setattr(settle, "_to_be_heard", lambda node, now: node)
    patch.setattr(channel.Connection, "answers", lambda self, wanted: True)


# --- the channel and the logs ---------------------------------------------------------------------------


@_mistake
def ended_is_believed_before_the_log_is_whole(patch: Patch) -> None:
    async def report(self: channel.Channel, connection: Any, said: Any) -> None:
        self.pass_on(connection, said)

    patch.setattr(channel.Channel, "_report_or_hold", report)


@_mistake
def a_broken_line_ends_the_wait_for_a_log(patch: Patch) -> None:
    patch.setattr(channel.Connection, "is_leaving", property(lambda self: True, lambda self, _: None), raising=False)


@_mistake
def an_append_ignores_the_offset(patch: Patch) -> None:
    real = nodelogs.NodeLogs.append

    def append(self: Any, key: Any, rank: int, offset: int, data: bytes) -> int:
        return real(self, key, rank, self.size(key, rank), data)

    patch.setattr(nodelogs.NodeLogs, "append", append)


@_mistake
def checkpoints_are_told_twice(patch: Patch) -> None:
    patch.setattr(jobs, "advance_checkpoint_seq", lambda *_: True)


@_mistake
def whom_we_do_not_know_is_told_to_stop(patch: Patch) -> None:
    real = attendance.Attendance.arrive

    def arrive(self: Any, place: Any, token: str) -> Any:
        return replace(real(self, place, token), wanted=STOP)

    patch.setattr(attendance.Attendance, "arrive", arrive)


# --- several controllers ----------------------------------------------------------------------------------


@_mistake_of_several
def the_lease_is_not_renewed(patch: Patch) -> None:
    patch.setattr(ownership.Ownership, "_renew", lambda self: self._lease.confirm(self._lease.monotonic()))


@_mistake_of_several
def the_living_are_robbed(patch: Patch) -> None:
    real = jobs.claim
    patch.setattr(jobs, "claim", lambda *said, **how: real(*said, **{**how, "take_all": True}))


@_mistake_of_several
def the_dead_keep_their_jobs(patch: Patch) -> None:
    real = jobs.claim

    def claim(conn: Any, owner: str, now: float, **how: Any) -> Any:
        first = conn.execute(select(jobs.Controller.c.id)).scalars().all()
        return real(conn, owner, now, **how) if first == [owner] else []

    patch.setattr(jobs, "claim", claim)


@_mistake_of_several
def a_letter_is_dropped(patch: Patch) -> None:
    patch.setattr(letters, "put_each", lambda *_: None)


@_mistake_of_several
def a_letter_tells_of_no_checkpoint(patch: Patch) -> None:
    real = mail.written

    def written(turn: Any) -> Any:
        body = real(turn)
        return {name: value for name, value in body.items() if name != "checkpoint"} if body else body

    patch.setattr(mail, "written", written)


@_mistake_of_several
def a_letter_is_delivered_again(patch: Patch) -> None:
    """And what was told by it is told twice."""
    patch.setattr(letters, "take", lambda *_: True)
    patch.setattr(recording, "_is_new", lambda conn, checkpoint: True)


@_mistake_of_several
def both_sweep_what_is_the_others(patch: Patch) -> None:
    def is_known(self: sweep.Sweep, key: Any) -> bool:
        return any(turns.attempt_of(job, key) is not None for job in self.views() if job.id == key[0])

    def end_orphans(self: sweep.Sweep, cloud: Any, listed: Any) -> int:
        for instance in listed:
            if not is_known(self, sweep._key(instance)):
                with suppress(Exception):
                    cloud.terminate(instance.region, [instance.id])
        return 0

    patch.setattr(sweep.Sweep, "_end_orphans", end_orphans)


@_mistake
def an_outage_counts_against_the_nodes(patch: Patch) -> None:
    patch.setattr(reconcile.Reconciler, "database_is_away", lambda self: None)
    patch.setattr("perdure.controller.outage.Outage.began", lambda self: None)


@_mistake_of_several
def nodes_of_others_are_told_to_stop(patch: Patch) -> None:
    real = rounds.Rounds._attempts

    def attempts(self: Any, keys: Any) -> Any:
        own = {key for key in keys if self.reconciler.view(key[0]) is not None}
        return real(self, own)

    patch.setattr(rounds.Rounds, "_attempts", attempts)


def _replace_rule(patch: Patch, name: str, spoilt: Any) -> None:
    rules = tuple(spoilt if rule.__name__ == name else rule for rule in settle.RULES)
    patch.setattr(settle, "RULES", rules)
