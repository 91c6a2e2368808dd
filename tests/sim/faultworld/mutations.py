"""Mutations: bugs that are planted into the real code, each of which the simulation must find.

A mutation is a function that takes a `pytest.MonkeyPatch` and breaks something. It stands for a bug that a change of
the controller could introduce.
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
from perdure.controller.execute import cloud_actions
from perdure.controller.execute.call_types import IntentOutcome, RetryLater
from perdure.controller.execute.cloud_actions import CloudActions
from perdure.controller.maintenance import orphan_sweep
from perdure.controller.nodes import connection, connection_records, frames, node_spec, session
from perdure.controller.peers import anti_entropy, ownership
from perdure.controller.peers import peer_messages as messages
from perdure.controller.reconcile import inbox, intent_builder, loop, recorder, work_items
from perdure.controller.runtime.security.incarnations import Incarnations
from perdure.controller.store.logs import file_logs
from perdure.controller.store.records import buckets, intents, job_claims, jobs, peer_messages
from perdure.recovery import events, observe
from perdure.recovery.directive import STOP
from perdure.recovery.job import AttemptView
from perdure.recovery.rules import failure, table

Patch = pytest.MonkeyPatch
MUTATIONS: dict[str, Callable[[Patch], None]] = {}
# Mutations that only histories with several controllers reveal.
NEEDS_SEVERAL_CONTROLLERS = {"the_guard_ignores_the_epoch", "nodes_of_unknown_attempts_are_stopped"}

# Mutations that only certain kinds of faults reveal: histories that look for them have no others.
REVEALING_FAULTS: dict[str, tuple[str, ...]] = {
    "an_unknown_result_counts_as_no_capacity": ("lost-answers", "partial-launch", "outage"),
    "nodes_count_as_connected_after_a_restart": ("agent-vanish", "stop", "kill"),
    "the_guard_ignores_the_epoch": ("freeze", "take-over"),
    "a_failed_rank_is_blamed_at_once": ("preempt", "crash"),
    "a_failed_rank_is_blamed_without_a_roll_call": ("forget",),
    "a_broken_connection_ends_the_wait_for_a_log": ("disconnect",),
    "a_nan_of_a_node_is_believed": ("hostile-frame",),
    "an_append_ignores_the_offset": ("repeat", "disconnect"),
    "nodes_of_unknown_attempts_are_stopped": ("freeze", "take-over", "disconnect"),
    "an_outage_counts_against_the_nodes": ("database-down",),
}


def _mutation(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MUTATIONS[plant.__name__] = plant
    return plant


def _mutation_of_several(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    NEEDS_SEVERAL_CONTROLLERS.add(plant.__name__)
    return _mutation(plant)


def scenario_for(name: str, seed: int) -> Scenario:
    """A scenario that may reveal the mutation: it has the right kinds of faults and the right number of controllers."""
    controllers = (2, 3) if name in NEEDS_SEVERAL_CONTROLLERS else (0,)
    return scenario_of(seed, kinds=REVEALING_FAULTS.get(name, tuple(FAULTS)), controllers=controllers)


# --- calls of clouds and bucket stores ----------------------------------------------------------------


@_mutation
def a_new_token_for_each_try(patch: Patch) -> None:
    real, tries = CloudActions._request, itertools.count()

    def request(self: CloudActions, intent: Any) -> Any:
        made = real(self, intent)
        return replace(made, owner=replace(made.owner, token=f"{made.owner.token}-{next(tries)}"))

    patch.setattr(CloudActions, "_request", request)


@_mutation
def the_same_token_for_every_attempt(patch: Patch) -> None:
    patch.setattr(Incarnations, "launch_token", lambda self, controller, key: f"{key[0]}-{key[1]}")


@_mutation
def a_launch_is_recorded_after_it_was_made(patch: Patch) -> None:
    """Machines are bought before the intent to launch them is recorded."""
    real_intents, real_decisions = intent_builder.IntentBuilder.record, recorder.Recorder.record
    executors: list[CloudActions] = []

    def record_intents(self: Any, conn: Any, decided: Any, now: float) -> Any:
        recorded = real_intents(self, conn, decided, now)
        for intent in itertools.chain.from_iterable(recorded.values()):
            if intent.kind is intents.IntentKind.LAUNCH:
                with suppress(Exception):
                    cloud = executors[0].clouds[intent.request["offer"]["cloud"]]
                    cloud.launch(executors[0]._request(intent))
        return recorded

    def record_decisions(self: Any, decisions: Any, now: float) -> Any:
        executors[:] = [self.has_open.__self__.calls._run.executor]
        return real_decisions(self, decisions, now)

    patch.setattr(recorder.Recorder, "record", record_decisions)
    patch.setattr(intent_builder.IntentBuilder, "record", record_intents)


@_mutation
def a_termination_is_tried_once(patch: Patch) -> None:
    real = CloudActions._terminate

    def terminate(self: CloudActions, intent: Any, machines: Any, tries: int) -> Any:
        answer = real(self, intent, machines, tries)
        gone = events.AttemptGone(intent.task, intent.generation)
        return IntentOutcome("gone", gone) if isinstance(answer, RetryLater) else answer

    patch.setattr(CloudActions, "_terminate", terminate)


@_mutation
def an_unknown_result_counts_as_no_capacity(patch: Patch) -> None:
    patch.setattr(cloud_actions, "_MAX_AMBIGUOUS_RETRIES", 0)
    real = CloudActions._launch_failed

    def failed(self: CloudActions, *args: Any) -> Any:
        answer = real(self, *args)
        if not isinstance(answer, IntentOutcome):
            return answer
        return replace(answer, event=replace(answer.event, may_exist=False))

    patch.setattr(CloudActions, "_launch_failed", failed)


@_mutation
def an_unlisted_new_machine_counts_as_gone(patch: Patch) -> None:
    patch.setattr(cloud_actions, "VISIBLE_WITHIN_S", 0.0)


@_mutation
def lifetimes_are_not_recorded(patch: Patch) -> None:
    patch.setattr(jobs, "record_lifetimes", lambda *_: None)


@_mutation
def a_bucket_is_removed_with_the_first_of_its_jobs(patch: Patch) -> None:
    patch.setattr(buckets, "_used_by_another", lambda *_: False)


@_mutation
def a_bucket_belongs_to_its_creator_only(patch: Patch) -> None:
    patch.setattr(intent_builder, "removable", lambda *args: [b for b in buckets.removable(*args) if b.created])


@_mutation_of_several
def the_sweep_reads_the_database_first(patch: Patch) -> None:
    def run(self: orphan_sweep.OrphanSweep) -> int:
        for cloud in self.clouds.values():
            owned = {(j.id, t.index, a.generation) for j in self.views() for t in j.tasks for a in t.attempts}
            try:
                listed = cloud.list_owned(self.controller)
                for instance in listed:
                    if orphan_sweep._key(instance) not in owned:
                        cloud.terminate(instance.region, [instance.id])
            except Exception:
                continue
        return 0

    patch.setattr(orphan_sweep.OrphanSweep, "run", run)


# --- the lease, the database, a restart ------------------------------------------------------------------


@_mutation
def the_guard_ignores_the_epoch(patch: Patch) -> None:
    def update_guarded(conn: Any, options: Sequence[tuple[Any, Mapping[str, Any]]]) -> None:
        for claim, columns in options:
            conn.execute(update(job_claims.Job).where(job_claims.Job.c.id == claim.job_id).values(**columns))

    patch.setattr(job_claims, "update_guarded", update_guarded)


@_mutation
def adoption_forgets_open_intents(patch: Patch) -> None:
    patch.setattr(intents, "open_intents", lambda conn, ids: [])


@_mutation
def nodes_count_as_connected_after_a_restart(patch: Patch) -> None:
    patch.setattr("perdure.controller.reconcile.work_items.missing_nodes", lambda job, connected: [])


@_mutation
def time_without_a_controller_counts_against_the_nodes(patch: Patch) -> None:
    patch.setattr("perdure.recovery.job.View.wait_starts_at", lambda self, at: at)


@_mutation
def an_event_that_was_not_recorded_is_dropped(patch: Patch) -> None:
    real = loop.Reconciler._schedule

    def schedule(self: Any, when: float, what: Any) -> None:
        if not (isinstance(what, work_items.JobEvent) and when == self._paused_until and not what.is_wake):
            real(self, when, what)

    patch.setattr(loop.Reconciler, "_schedule", schedule)


@_mutation
def the_task_id_changes_with_each_attempt(patch: Patch) -> None:
    real = node_spec._variables

    def variables(row: Any, key: Any, ids: Any) -> dict[str, str]:
        return {**real(row, key, ids), "SKYPILOT_TASK_ID": f"{row['task_id']}-{key[2]}"}

    patch.setattr(node_spec, "_variables", variables)


# --- decisions ---------------------------------------------------------------------------------------------


@_mutation
def the_next_attempt_runs_before_the_last_has_stopped(patch: Patch) -> None:
    patch.setattr(AttemptView, "may_run_workload", property(lambda self: False))


@_mutation
def a_users_error_counts_as_a_recovery(patch: Patch) -> None:
    real = failure.handle_failure

    def handle_failure(task: Any, ctx: Any) -> Any:
        after = real(task, ctx)
        restarts = after is not None and after.outcome is None and "RESTART" in after.reason.name
        return replace(after, recovery_count=after.recovery_count + 1) if restarts else after

    _replace_rule(patch, "handle_failure", handle_failure)


@_mutation
def each_notice_counts_as_a_recovery(patch: Patch) -> None:
    real = observe._node_event

    def node_event(job: Any, event: Any, now: float, out: Any) -> Any:
        after = real(job, event, now, out)
        if isinstance(event, events.PreemptionNotice):
            task = after.tasks[event.task]
            after = after.with_task(replace(task, recovery_count=task.recovery_count + 1))
        return after

    patch.setattr(observe, "_node_event", node_event)


@_mutation
def a_failed_rank_is_blamed_at_once(patch: Patch) -> None:
    patch.setattr(failure, "_peers_are_alive", lambda attempt: True)


@_mutation
def a_failed_rank_is_blamed_without_a_roll_call(patch: Patch) -> None:
    patch.setattr(failure, "_require_reconnect", lambda node, now: node)
    patch.setattr(connection.Connection, "acknowledges", lambda self, directive: True)


# --- node sessions and logs -----------------------------------------------------------------------------


@_mutation
def a_final_report_does_not_wait_for_the_log(patch: Patch) -> None:
    async def report(self: session.NodeSessions, connection: Any, report: Any, _frame: Any) -> None:
        self.deliver_report(connection, report)

    patch.setattr(session.NodeSessions, "_on_report", report)


@_mutation
def a_broken_connection_ends_the_wait_for_a_log(patch: Patch) -> None:
    always = property(lambda self: True, lambda self, _: None)
    patch.setattr(connection.Connection, "notice_received", always, raising=False)


@_mutation
def an_append_ignores_the_offset(patch: Patch) -> None:
    real = file_logs.FileLogStore.append

    def append(self: Any, key: Any, rank: int, offset: int, data: bytes) -> int:
        return real(self, key, rank, self.size(key, rank), data)

    patch.setattr(file_logs.FileLogStore, "append", append)


@_mutation
def a_nan_of_a_node_is_believed(patch: Patch) -> None:
    patch.setattr(session, "parse_text", lambda text: frames.parse_text(text.replace("NaN", "0")))
    patch.setattr(session, "clamp_notice_deadline", lambda at, now, speed: at if at else float("nan"))


@_mutation
def checkpoints_are_recorded_twice(patch: Patch) -> None:
    patch.setattr(jobs, "advance_checkpoint_seq", lambda *_: True)


@_mutation
def nodes_of_unknown_attempts_are_stopped(patch: Patch) -> None:
    real = connection_records.ConnectionRecords.mark_connected

    def mark_connected(self: Any, place: Any, session_id: str) -> Any:
        return replace(real(self, place, session_id), directive=STOP)

    patch.setattr(connection_records.ConnectionRecords, "mark_connected", mark_connected)


# --- several controllers ----------------------------------------------------------------------------------


@_mutation_of_several
def the_lease_is_not_renewed(patch: Patch) -> None:
    patch.setattr(ownership.JobOwnership, "_renew", lambda self: self._lease.mark_held(self._lease.monotonic()))


@_mutation_of_several
def jobs_of_live_controllers_are_claimed(patch: Patch) -> None:
    real = job_claims.claim
    patch.setattr(job_claims, "claim", lambda *args, **how: real(*args, **{**how, "take_all": True}))


@_mutation_of_several
def jobs_of_dead_controllers_are_not_claimed(patch: Patch) -> None:
    real = job_claims.claim

    def claim(conn: Any, owner: str, now: float, **how: Any) -> Any:
        first = conn.execute(select(job_claims.Controller.c.id)).scalars().all()
        return real(conn, owner, now, **how) if first == [owner] else []

    patch.setattr(job_claims, "claim", claim)


@_mutation_of_several
def a_peer_message_is_dropped(patch: Patch) -> None:
    patch.setattr(peer_messages, "enqueue_each", lambda *_: None)


@_mutation_of_several
def a_peer_message_drops_its_checkpoint(patch: Patch) -> None:
    real = messages.encode

    def encode(job_event: Any) -> Any:
        body = real(job_event)
        return {name: value for name, value in body.items() if name != "checkpoint"} if body else body

    patch.setattr(messages, "encode", encode)


@_mutation_of_several
def a_peer_message_is_delivered_twice(patch: Patch) -> None:
    """Its checkpoint is recorded twice, too."""
    patch.setattr(peer_messages, "consume", lambda *_: True)
    patch.setattr(recorder, "_is_new", lambda conn, checkpoint: True)


@_mutation_of_several
def the_sweep_ignores_jobs_of_other_controllers(patch: Patch) -> None:
    def is_known(self: orphan_sweep.OrphanSweep, key: Any) -> bool:
        return any(work_items.find_attempt(job, key) is not None for job in self.views() if job.id == key[0])

    def terminate_orphans(self: orphan_sweep.OrphanSweep, cloud: Any, listed: Any) -> int:
        for instance in listed:
            if not is_known(self, orphan_sweep._key(instance)):
                with suppress(Exception):
                    cloud.terminate(instance.region, [instance.id])
        return 0

    patch.setattr(orphan_sweep.OrphanSweep, "_terminate_orphans", terminate_orphans)


@_mutation
def an_outage_counts_against_the_nodes(patch: Patch) -> None:
    patch.setattr(inbox.ReconcilerInbox, "report_outage", lambda self: None)
    patch.setattr("perdure.controller.reconcile.outage.DatabaseOutage.mark_down", lambda self: None)


@_mutation_of_several
def nodes_of_other_controllers_are_stopped(patch: Patch) -> None:
    real = anti_entropy.Resync._attempts

    def attempts(self: Any, keys: Any) -> Any:
        own = {key for key in keys if self.reconciler.view(key[0]) is not None}
        return real(self, own)

    patch.setattr(anti_entropy.Resync, "_attempts", attempts)


def _replace_rule(patch: Patch, name: str, broken_rule: Any) -> None:
    rules = tuple(broken_rule if rule.__name__ == name else rule for rule in table.RULES)
    patch.setattr(table, "RULES", rules)
