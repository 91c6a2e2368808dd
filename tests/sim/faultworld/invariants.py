"""The invariants of a world. They are checked against what really ran on machines, not only against the database.

They are those of docs/contributing/simulation.md; a violation starts with the number of its invariant.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from faultworld.clusters import checks as clusters
from faultworld.virtual_time import START
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.recovery.job import DEFAULT_RECOVERIES_PER_HOUR, JobView
from perdure.recovery.reasons import MEANINGS, Reason
from perdure.recovery.statuses import TERMINAL

if TYPE_CHECKING:
    from faultworld.node_lifecycle import NodeLifecycle
    from faultworld.nodes import Node
    from faultworld.process import Process
    from faultworld.scenario import JobPlan
    from faultworld.world import World

_TERMINAL = frozenset(s.value for s in TERMINAL)
_STARTED_STATES = {"SETTING_UP", "READY", "RUNNING"}
TaskKey = tuple[int, int]  # (job id, index)
# A request may be overdue at this many checks, one every few seconds.
MAX_OVERDUE_CHECKS = 6
# A checkpoint that was acknowledged more than this time before its attempt's end must be in the timeline.
MAX_RECORDING_DELAY_S = 30.0


class Violation(Exception):
    """An invariant does not hold. The text says which one, and why."""


class _TaskRow(NamedTuple):
    status: str
    task_id: str
    recovery_count: int
    restarts_on_errors: int
    ended_at: float | None
    outcome: str | None


class InvariantChecker:
    """Checks one world. It keeps the first violation only: later ones may be consequences."""

    def __init__(self, world: World, raw: sqlite3.Connection) -> None:
        self._world, self._raw = world, raw
        self._last_event = 0  # its id
        self._tasks: dict[TaskKey, _TaskRow] = {}
        self._running_workloads: dict[TaskKey, dict[NodeLifecycle, int]] = defaultdict(dict)  # node → generation
        self._lost_attempts: dict[TaskKey, dict[int, bool]] = defaultdict(dict)  # generation → counts as a recovery
        self._restarted_attempts: dict[TaskKey, set[int]] = defaultdict(set)
        self._requested_at: dict[TaskKey, list[float]] = defaultdict(list)  # in the last hour
        self._refused: Counter[TaskKey] = Counter()  # attempts that the cloud refused, or that were withdrawn
        self._acknowledged_cancels: set[int] = set()  # job ids
        self._recorded_cancels: set[int] = set()  # job ids
        self._unconfirmed_launches: set[AttemptKey] = set()  # recorded as failed, though machines started
        self._gone_at: dict[AttemptKey, float] = {}
        self._reported_steps: set[tuple[Any, ...]] = set()  # (job, task, generation, rank, step)
        self._owners: dict[int, str | None] = {}
        self._overdue: Counter[str] = Counter()  # a description → at how many checks in succession
        self.first_violation: Violation | None = None
        self.transactions = 0

    def report_violation(self, invariant: str, text: str) -> None:
        if self.first_violation is None:
            self.first_violation = Violation(f"{invariant}: {text}")
            self._world.record("violation", str(self.first_violation))

    # --- workloads and users ----------------------------------------------------------------------------------

    def on_workload_started(self, node: NodeLifecycle) -> None:
        task = node.key[:2]
        self._world.record(node.name, "the workload starts")
        others = {n.key[2] for n in self._running_workloads[task]} - {node.key[2]}
        if others:
            self.report_violation("I2", f"{node.name} starts while generation {sorted(others)} still runs")
        self._running_workloads[task][node] = node.key[2]

    def on_workload_ended(self, node: NodeLifecycle) -> None:
        self._world.record(node.name, "the workload ends")
        self._running_workloads[node.key[:2]].pop(node, None)

    def on_bucket_removed(self, bucket: str) -> None:
        """No job may work in a removed bucket, unless a process froze: it may complete a removal at any time."""
        for node in self._world.nodes.values():
            is_working = node.program is not None and node.program.is_alive
            is_excused = self._world.fault_counts["froze"] > 0
            plan = self._world.plan_of(node.key[0]) if is_working and not is_excused else None
            if plan is not None and plan.bucket == bucket:
                self.report_violation("I3", f"{bucket} is removed while {node.name} works in it")

    def on_node_spec(self, node: Node, spec: dict[str, Any]) -> None:
        task_ids, received = self._world.task_ids.get(node.key[0]), spec["env"]["SKYPILOT_TASK_ID"]
        if task_ids is not None and received != task_ids[node.key[1]]:
            self.report_violation("I4", f"{node.name} received task id {received}")

    def on_cancel_acknowledged(self, job_id: int) -> None:
        self._acknowledged_cancels.add(job_id)

    # --- the database -----------------------------------------------------------------------------------------

    def on_commit(self, process: Process) -> None:
        """Check the rows after a transaction."""
        self.transactions += 1
        self._check_events()
        if self._world.is_shared:
            self._check_owners()
        rows = self._raw.execute(
            "select job_id, `index`, status, task_id, recovery_count, restarts_on_errors, ended_at, outcome from task"
        )
        for job_id, index, *columns in rows:
            key, now = (job_id, index), _TaskRow(*columns)
            before, self._tasks[key] = self._tasks.get(key), now
            if before is not None and before != now:
                self._check_task(key, before, now)

    def _check_owners(self) -> None:
        """A job may change its owner only if the owner's lease has expired or was released."""
        for job_id, owner in self._raw.execute("select id, owner from job").fetchall():
            before, self._owners[job_id] = self._owners.get(job_id, owner), owner
            if owner != before:
                self._world.record(f"job {job_id}", f"changes its owner from {before} to {owner}")
                self._world.fault_counts["a job changed its owner"] += 1
                lease = self._raw.execute("select lease_until from controller where id = ?", (before,)).fetchone()
                if lease is not None and lease[0] >= self._world.scheduler.now():
                    self.report_violation(
                        "I9", f"job {job_id} is taken from {before}, whose lease runs until {lease[0] - START}"
                    )

    def check_progress(self) -> None:
        """Check that nothing is overdue while all controllers work. Called every few seconds."""
        overdue: set[str] = set()
        if not self._world.is_impaired():
            overdue = {*self._lost_cancels(), *self._unowned_jobs(), *self._late_loops()}
            overdue |= set(clusters.unsettled(self._raw))
        self._overdue = Counter({what: self._overdue[what] + 1 for what in overdue})
        for what, checks_overdue in self._overdue.items():
            if checks_overdue > MAX_OVERDUE_CHECKS:
                self.report_violation("I6", f"{what}, and no fault explains it")

    def _lost_cancels(self) -> list[str]:
        rows = self._raw.execute(
            "select distinct id from job join task on job_id = id where cancel_at is null and task.ended_at is null"
        )
        return [f"the cancel of job {id} is lost" for (id,) in rows if id in self._acknowledged_cancels]

    def _late_loops(self) -> list[str]:
        processes = [(p.name, p.components) for p in self._world.serving_processes()]
        problems = {name: components.watchdog.problem() for name, components in processes if components is not None}
        return [f"{name} does not keep up: {problem}" for name, problem in problems.items() if problem is not None]

    def _unowned_jobs(self) -> list[str]:
        if not self._world.is_shared:
            return []
        rows = self._raw.execute(
            "select job.id from job left join controller on controller.id = owner"
            " where not finalized and coalesce(lease_until, 0) < ?",
            (self._world.scheduler.now(),),
        )
        return [f"job {id} has no live owner" for (id,) in rows]

    def _check_task(self, key: TaskKey, before: _TaskRow, now: _TaskRow) -> None:
        end, end_before = ((row.status, row.ended_at, row.outcome) for row in (now, before))
        if before.status in _TERMINAL and end != end_before:
            self.report_violation("I1", f"task {key} was {before.status} and is {now.status}")
        if now.task_id != before.task_id:
            self.report_violation("I4", f"task {key} was {before.task_id} and is {now.task_id}")
        if now.status != before.status:
            self._world.record(f"job {key[0]}/{key[1]}", f"is {now.status}")
        lost = self._lost_attempts[key]
        unrecovered = bool(lost) and now.outcome == Reason.NOT_RECOVERED.value and lost[max(lost)]
        counted, shown = now.recovery_count, sum(lost.values()) - unrecovered
        if counted != shown:
            self.report_violation("I4", f"task {key} counts {counted} recoveries, its timeline shows {shown}")
        restarts, restarted = now.restarts_on_errors, self._restarted_attempts[key]
        if restarts != len(restarted):
            self.report_violation("I4", f"task {key} counts {restarts} restarts, its timeline shows {restarted}")

    def _check_events(self) -> None:
        rows = self._raw.execute(
            "select id, job_id, task_index, generation, rank, kind, reason, message, data from event"
            " where id > ? order by id",
            (self._last_event,),
        ).fetchall()
        for id, job, task, generation, rank, kind, reason, message, data in rows:
            self._last_event = id
            where = "" if generation is None else f"g{generation}" + ("" if rank is None else f"r{rank}")
            subject = f"job {job}" + ("" if task is None else f"/{task}/{where}")
            self._world.record(subject, " ".join(str(w) for w in (kind, reason, message) if w))
            self._check_event((job, task, generation, rank), kind, reason, json.loads(data))

    def _check_event(self, place: tuple[Any, ...], kind: str, reason: str | None, data: dict[str, Any]) -> None:
        job, task, generation, _ = place
        match kind:
            case "attempt.requested":
                self._check_request_rate((job, task))
            case "attempt.lost":
                assert reason is not None
                self._check_lost_attempt((job, task), generation, Reason(reason), data)
            case "attempt.failed":
                if generation in self._restarted_attempts[job, task]:
                    self.report_violation("I4", f"generation {generation} of {job}/{task} failed twice")
                if reason == Reason.RESTART_ON_ERROR:
                    self._restarted_attempts[job, task].add(generation)
            case "attempt.refused" | "attempt.withdrawn":
                self._refused[job, task] += 1
                self._check_failed_launch((job, task, generation), kind)
            case "attempt.gone":
                self._gone_at[job, task, generation] = self._world.scheduler.now()
            case "job.cancel":
                self._recorded_cancels.add(job)
            case "attempt.requested" if job in self._acknowledged_cancels & self._recorded_cancels:
                self.report_violation("I1", f"job {job} was cancelled, and generation {generation} is launched")
            case "checkpoint.committed":
                self._check_reported_step(place, int(data["step"]))

    def _check_request_rate(self, task: TaskKey) -> None:
        """In an hour, a task begins its first attempt, one for each recovery that is allowed, and one per refusal."""
        now = self._world.scheduler.now()
        self._requested_at[task] = [at for at in self._requested_at[task] if at > now - 3600.0] + [now]
        refused = self._refused[task]
        if len(self._requested_at[task]) - refused > 1 + DEFAULT_RECOVERIES_PER_HOUR:
            self.report_violation("I10", f"{task} requested {len(self._requested_at[task])} attempts in an hour")

    def _check_market(self) -> None:
        """An offer is avoided by all jobs only after a cloud has taken or refused a machine of it."""
        rows = self._raw.execute("select zone, at from unavailable_offer where from_preemption and job_id is null")
        lost = {n.machine_id for n in self._world.nodes.values() if n.was_ended_by_fault}
        if (found := rows.fetchall()) and not lost:
            self.report_violation("I10", f"all jobs avoid {found}, though no cloud has taken a machine")

    def _check_failed_launch(self, key: tuple[int, int, int], kind: str) -> None:
        has_machines = any(n.key == key for n in self._world.nodes.values())
        if kind == "attempt.withdrawn":
            self._world.fault_counts["a launch was withdrawn"] += 1
            if has_machines:
                self.report_violation("I3", f"generation {key[2]} of {key[0]}/{key[1]} was withdrawn, and has machines")
        elif has_machines:
            # The machine may be gone before it is discovered: only the cloud knows its cost.
            self._unconfirmed_launches.add(key)

    def _check_lost_attempt(self, task: TaskKey, generation: int, reason: Reason, data: dict[str, Any]) -> None:
        if generation in self._lost_attempts[task]:
            self.report_violation("I4", f"generation {generation} of {task} was lost twice")
        self._lost_attempts[task][generation] = MEANINGS[reason].is_recovery and data["was"] in _STARTED_STATES
        nodes = [n for n in self._world.nodes.values() if n.key == (*task, generation)]
        has_cause = any(self._world.has_cause(n, reason) for n in nodes)
        if not has_cause and not self._world.explains_loss((*task, generation), reason):
            self.report_violation("I4", f"generation {generation} of {task} was lost as {reason} without a cause")

    def _check_reported_step(self, place: tuple[Any, ...], step: int) -> None:
        if (*place, step) in self._reported_steps:
            self.report_violation("I7", f"the timeline of {place} repeats step {step}")
        self._reported_steps.add((*place, step))
        saved = [c["step"] for n in self._world.nodes.values() if (*n.key, n.rank) == place for c in n.disk.checkpoints]
        if step not in saved:
            self.report_violation("I7", f"the timeline of {place} shows step {step}, which was never saved")

    # --- the controllers ---------------------------------------------------------------------------------------

    def check_process(self, process: Process) -> None:
        """Check that every job awaits something, or it is lost. Called after each run of the reconciler."""
        assert process.components is not None
        components = process.components
        if components.inbox.outage.is_down or process.clock.now() < components.reconciler._paused_until:
            return  # it decides nothing while its database is down
        for job_id, owned in components.inbox.owned.items():
            if owned.commit_unknown:
                continue  # it is reloaded soon
            if owned.wake_at is None and not components.dispatcher.has_open(job_id) and not _awaits_node(owned.view):
                self.report_violation("I6", f"job {job_id} awaits nothing: {owned.view.tasks}")

    def on_error(self, error: str) -> None:
        self.report_violation("error", f"the controller raised an error: {error}")

    # --- the end ------------------------------------------------------------------------------------------------

    def check_end(self, home: Path) -> None:
        """Check everything, when nothing is left to do. `home` is the directory of the logs."""
        self._check_events()
        self._check_jobs_ended()
        self._check_machines()
        self._check_logs(home)
        self._check_checkpoints()
        self._check_costs()
        self._check_market()

    def _check_jobs_ended(self) -> None:
        for name, plan in self._world.job_plans.items():
            ids = self._world.accepted[name] if not plan.is_of_cluster else clusters.jobs_named(self._raw, name)
            if len(ids) != 1 and (ids or not plan.is_of_cluster):  # a cluster that ends rejects jobs
                self.report_violation("I1", f"{name} was accepted as {sorted(ids)}")
            for job_id in ids:
                for index in range(len(plan.tasks)):
                    self._check_outcome((job_id, index), plan)

    def _check_outcome(self, key: TaskKey, plan: JobPlan) -> None:
        status = self._tasks[key].status
        progress = self._world.progress[key]
        task = plan.tasks[key[1]]
        finished = any(len(ranks) == plan.nodes for ranks in progress.finished.values())
        counted = [c for c in progress.failures if c not in plan.recovered_exit_codes]
        match status:
            case "SUCCEEDED":
                holds = finished
            case "CANCELLED":
                is_skipped = key[1] > 0 and self._tasks[key[0], key[1] - 1].status != "SUCCEEDED"
                holds = plan.cancel_at is not None or is_skipped or self._world.cluster_users.may_end_early(plan)
            case "FAILED":
                holds = (
                    len(counted) > plan.max_restarts and task.failing_stage == "run"
                ) or progress.flush_failures > 0
            case "FAILED_SETUP":
                holds = len(counted) > plan.max_restarts and task.failing_stage == "setup"
            case _:
                holds = False
        if not holds:
            self.report_violation(
                "I1", f"task {key} is {status}: finished {progress.finished}, failures {progress.failures}"
            )

    def _check_machines(self) -> None:
        for name, cloud in self._world.clouds.items():
            if cloud.living():
                self.report_violation("I3", f"{name} still runs {cloud.living()}")
        rows = self._raw.execute("select job_id, task_index, generation, state from attempt where state != 'GONE'")
        if attempts := rows.fetchall():
            self.report_violation("I3", f"attempts that count as live: {attempts}")
        if self._world.buckets.names:
            self.report_violation("I3", f"buckets that were not removed: {self._world.buckets.names}")

    def _check_logs(self, home: Path) -> None:
        rows = self._raw.execute("select job_id, task_index, generation, rank, phase from node")
        phases = {tuple(place): phase for *place, phase in rows}
        cancelled = self._world.jobs_cancelled_without_grace()
        for node in self._world.nodes.values():
            printed = bytes(node.disk.log)
            kept = self._kept_log(node, home)
            if not printed.startswith(kept):
                self.report_violation("I5", f"the log of {node.name} is not what it printed: {kept!r} of {printed!r}")
            was_given_up = node.key[2] in self._lost_attempts[node.key[:2]] or node.key[0] in cancelled
            has_ended = phases.get((*node.key, node.rank)) == "ended"
            ended_in_order = has_ended and not clusters.has_machines_ended(node) and not was_given_up
            if ended_in_order and kept != printed and not node.outages:
                self.report_violation("I5", f"{node.name} ended in order, {len(kept)} of {len(printed)} bytes are kept")

    def _kept_log(self, node: Node, home: Path) -> bytes:
        if not self._world.is_shared:
            path = FileLogStore(home).folder(node.key) / f"{node.rank}.log"
            return path.read_bytes() if path.exists() else b""
        place = "job_id = ? and task_index = ? and generation = ? and rank = ?"
        chunks = self._raw.execute(f"select data from log_chunk where {place} order by number", (*node.key, node.rank))
        return b"".join(data for (data,) in chunks)

    def _check_checkpoints(self) -> None:
        for key, progress in self._world.progress.items():
            steps = [step for _, step in progress.commits]
            if any(b <= a for a, b in itertools.pairwise(steps)):
                self.report_violation("I7", f"checkpoints of {key} were committed as {progress.commits}")
        for node in self._world.nodes.values():
            for seq, at in node.acknowledged.items():
                place = (*node.key, node.rank, node.disk.checkpoints[seq - 1]["step"])
                if place not in self._reported_steps and at < self._gone_at.get(node.key, 0.0) - MAX_RECORDING_DELAY_S:
                    self.report_violation(
                        "I7", f"a checkpoint of {node.name} was acknowledged, and is not in the timeline"
                    )

    def _check_costs(self) -> None:
        charged: dict[int, float] = defaultdict(float)
        without_bill: set[int] = set()  # jobs with a machine whose cost nobody but its cloud can know
        for cloud in self._world.clouds.values():
            for charge in cloud.bill():
                charged[charge.owner.job_id] += charge.usd
        for node in self._world.nodes.values():
            has_ended_early = node.was_ended_by_fault or node.powered_itself_off
            if node.was_forgotten or (node.key in self._unconfirmed_launches and has_ended_early):
                without_bill.add(node.key[0])
        for job_id, recorded in self._world.recorded_costs().items():
            # The end of a machine that had to be discovered is known only approximately.
            is_exact = all(key[0] != job_id for key in self._unconfirmed_launches)
            tolerance = 1e-6 if is_exact else 1e-6 + 0.05 * charged[job_id]
            if job_id not in without_bill and abs(recorded - charged[job_id]) > tolerance:
                self.report_violation(
                    "I8", f"job {job_id} costs {recorded:.6f} USD in the database, {charged[job_id]:.6f} on the bill"
                )


def _awaits_node(job: JobView) -> bool:
    """Whether the job awaits a report or the timeout of a node."""
    return any(n.connected and not n.has_stopped for t in job.tasks for a in t.attempts for n in a.nodes)
