"""Watches a world and says what may not be. What truly ran on machines is the judge's evidence, not the database.

The invariants are those of docs/simulation.md; a violation names the one that it breaks.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from faultworld.timing import START
from perdure.controller.keyring import AttemptKey
from perdure.controller.nodelogs import NodeLogs
from perdure.recovery.job import JobView
from perdure.recovery.reasons import MEANINGS, Reason
from perdure.recovery.statuses import TERMINAL

if TYPE_CHECKING:
    from faultworld.nodes import Node
    from faultworld.process import Process
    from faultworld.world import World

_TERMINAL = frozenset(s.value for s in TERMINAL)
_HAD_BEGUN = {"SETTING_UP", "READY", "RUNNING"}
TaskKey = tuple[int, int]
# How many looks, one every few seconds, may find the same thing undone.
MOST_LOOKS = 6
# What was acknowledged this long before its attempt's end is in the timeline.
KNOWN_WITHIN_S = 30.0


class Violation(Exception):
    """An invariant does not hold. The text says which, and how it shows."""


class Judge:
    def __init__(self, world: World, raw: sqlite3.Connection) -> None:
        self._world, self._raw = world, raw
        self._last_event = 0
        self._tasks: dict[TaskKey, tuple[Any, ...]] = {}
        self._running: dict[TaskKey, dict[Node, int]] = defaultdict(dict)
        self._lost: dict[TaskKey, dict[int, bool]] = defaultdict(dict)
        self._restarted: dict[TaskKey, set[int]] = defaultdict(set)
        self._cancel_acknowledged: set[int] = set()
        self._cancel_recorded: set[int] = set()
        self._unknown: set[AttemptKey] = set()
        self._gone_at: dict[AttemptKey, float] = {}
        self._told: set[tuple[int, int, int, int, int]] = set()
        self._owners: dict[int, str | None] = {}
        self._overdue: Counter[str] = Counter()
        self.first: Violation | None = None
        self.checks = 0

    def breaks(self, invariant: str, how: str) -> None:
        """The first violation is kept: what follows it may follow from it."""
        if self.first is None:
            self.first = Violation(f"{invariant}: {how}")
            self._world.tell("judge", str(self.first))

    # --- what truly runs -------------------------------------------------------------------------------------

    def workload_begins(self, node: Node) -> None:
        task = node.key[:2]
        self._world.tell(node.name, "the workload begins")
        others = {n.key[2] for n in self._running[task]} - {node.key[2]}
        if others:
            self.breaks("I2", f"{node.name} begins while generation {sorted(others)} still runs")
        self._running[task][node] = node.key[2]

    def workload_ends(self, node: Node) -> None:
        self._world.tell(node.name, "the workload ends")
        self._running[node.key[:2]].pop(node, None)

    def bucket_removed(self, bucket: str) -> None:
        """Who stood still in the middle of a removal may go on with it at any time: that is not promised."""
        for node in self._world.nodes.values():
            works = node.program is not None and node.program.is_alive and not self._world.met["froze"]
            plan = self._world.plan_of(node.key[0]) if works else None
            if plan is not None and plan.bucket == bucket:
                self.breaks("I3", f"{bucket} is removed while {node.name} works in it")

    def got_spec(self, node: Node, spec: dict[str, Any]) -> None:
        known = self._world.task_ids.get(node.key[0])
        if known is not None and spec["env"]["SKYPILOT_TASK_ID"] != known[node.key[1]]:
            self.breaks("I4", f"{node.name} was told task id {spec['env']['SKYPILOT_TASK_ID']}")

    def cancel_acknowledged(self, job_id: int) -> None:
        self._cancel_acknowledged.add(job_id)

    # --- what is recorded -------------------------------------------------------------------------------------

    def committed(self, process: Process) -> None:
        """After each transaction: the rows as they are now."""
        self.checks += 1
        self._look_at_events()
        if self._world.is_shared:
            self._look_at_owners()
        rows = self._raw.execute(
            "select job_id, `index`, status, task_id, recovery_count, restarts_on_errors, ended_at, outcome from task"
        )
        for job_id, index, *now in rows:
            key = (job_id, index)
            before, self._tasks[key] = self._tasks.get(key), tuple(now)
            if before is not None and before != tuple(now):
                self._task_changed(key, before, tuple(now))

    def _look_at_owners(self) -> None:
        """A job changes hands only when its owner's lease has run out, or was given back."""
        for job_id, owner in self._raw.execute("select id, owner from job").fetchall():
            before, self._owners[job_id] = self._owners.get(job_id, owner), owner
            if owner != before:
                self._world.tell(f"job {job_id}", f"goes from {before} to {owner}")
                self._world.met["a job changed hands"] += 1
                lease = self._raw.execute("select lease_until from controller where id = ?", (before,)).fetchone()
                if lease is not None and lease[0] >= self._world.scheduler.now():
                    self.breaks("I9", f"job {job_id} is taken from {before}, whose lease runs until {lease[0] - START}")

    def looks_around(self) -> None:
        """Now and then: what nobody does although all could."""
        late = set() if self._world.is_in_trouble() else {*self._lost_wishes(), *self._nobodys()}
        self._overdue = Counter({what: self._overdue[what] + 1 for what in late})
        for what, looks in self._overdue.items():
            if looks > MOST_LOOKS:
                self.breaks("I6", f"{what}, and all is well otherwise")

    def _lost_wishes(self) -> list[str]:
        rows = self._raw.execute(
            "select distinct id from job join task on job_id = id where cancel_at is null and task.ended_at is null"
        )
        return [f"the cancel of job {id} is known to nobody" for (id,) in rows if id in self._cancel_acknowledged]

    def _nobodys(self) -> list[str]:
        if not self._world.is_shared:
            return []
        rows = self._raw.execute(
            "select job.id from job left join controller on controller.id = owner"
            " where not settled and coalesce(lease_until, 0) < ?",
            (self._world.scheduler.now(),),
        )
        return [f"job {id} is in nobody's hands" for (id,) in rows]

    def _task_changed(self, key: TaskKey, before: tuple[Any, ...], now: tuple[Any, ...]) -> None:
        if before[0] in _TERMINAL and (now[0], now[4], now[5]) != (before[0], before[4], before[5]):
            self.breaks("I1", f"task {key} was {before[0]} and is {now[0]}")
        if now[1] != before[1]:
            self.breaks("I4", f"task {key} was {before[1]} and is {now[1]}")
        if now[0] != before[0]:
            self._world.tell(f"job {key[0]}/{key[1]}", f"is {now[0]}")
        recoveries = sum(self._lost[key].values())
        if now[2] != recoveries:
            self.breaks("I4", f"task {key} counts {now[2]} recoveries, its timeline tells of {recoveries}")
        if now[3] != len(self._restarted[key]):
            self.breaks("I4", f"task {key} counts {now[3]} restarts, its timeline tells of {self._restarted[key]}")

    def _look_at_events(self) -> None:
        rows = self._raw.execute(
            "select id, job_id, task_index, generation, rank, kind, reason, message, data from event"
            " where id > ? order by id",
            (self._last_event,),
        ).fetchall()
        for id, job, task, generation, rank, kind, reason, message, data in rows:
            self._last_event = id
            where = "" if generation is None else f"g{generation}" + ("" if rank is None else f"r{rank}")
            who = f"job {job}" + ("" if task is None else f"/{task}/{where}")
            self._world.tell(who, " ".join(str(w) for w in (kind, reason, message) if w))
            self._event((job, task, generation, rank), kind, reason, json.loads(data))

    def _event(self, place: tuple[Any, ...], kind: str, reason: str | None, data: dict[str, Any]) -> None:
        job, task, generation, _ = place
        match kind:
            case "attempt.lost":
                assert reason is not None
                self._attempt_lost((job, task), generation, Reason(reason), data)
            case "attempt.failed":
                if generation in self._restarted[job, task]:
                    self.breaks("I4", f"generation {generation} of {job}/{task} failed twice")
                if reason == Reason.RESTART_ON_ERROR:
                    self._restarted[job, task].add(generation)
            case "attempt.refused" | "attempt.withdrawn":
                self._not_bought((job, task, generation), kind)
            case "attempt.gone":
                self._gone_at[job, task, generation] = self._world.scheduler.now()
            case "job.cancel":
                self._cancel_recorded.add(job)
            case "attempt.requested" if job in self._cancel_acknowledged & self._cancel_recorded:
                self.breaks("I1", f"job {job} was cancelled, and generation {generation} is bought")
            case "checkpoint.committed":
                self._checkpoint(place, int(data["step"]))

    def _not_bought(self, key: tuple[int, int, int], kind: str) -> None:
        has_machines = any(n.key == key for n in self._world.nodes.values())
        if kind == "attempt.withdrawn":
            self._world.met["a launch was taken back"] += 1
            if has_machines:
                self.breaks("I3", f"generation {key[2]} of {key[0]}/{key[1]} was taken back, and has machines")
        elif has_machines:
            # What was bought may be gone before it can be found: its price is known to the cloud alone.
            self._unknown.add(key)

    def _attempt_lost(self, task: TaskKey, generation: int, reason: Reason, data: dict[str, Any]) -> None:
        if generation in self._lost[task]:
            self.breaks("I4", f"generation {generation} of {task} was lost twice")
        self._lost[task][generation] = MEANINGS[reason].is_recovery and data["was"] in _HAD_BEGUN
        nodes = [n for n in self._world.nodes.values() if n.key == (*task, generation)]
        if not any(self._world.has_cause(n, reason) for n in nodes):
            self.breaks("I4", f"generation {generation} of {task} was given up as {reason} for no cause")

    def _checkpoint(self, place: tuple[Any, ...], step: int) -> None:
        if (*place, step) in self._told:
            self.breaks("I7", f"the timeline of {place} tells of step {step} again")
        self._told.add((*place, step))
        saved = [c["step"] for n in self._world.nodes.values() if (*n.key, n.rank) == place for c in n.disk.checkpoints]
        if step not in saved:
            self.breaks("I7", f"the timeline of {place} tells of step {step}, which was never saved")

    # --- what a process believes -------------------------------------------------------------------------------

    def looks_at(self, process: Process) -> None:
        """After each turn: a job that nothing will move is lost."""
        assert process.parts is not None
        reconciler = process.parts.reconciler
        if reconciler._outage.is_on or process.clock.now() < reconciler._paused_until:
            return  # it decides nothing before its database is back
        for job_id, owned in reconciler._jobs.items():
            if owned.is_doubtful:
                continue  # it is read again in a while
            if owned.wake_at is None and not reconciler.dispatcher.has_open(job_id) and not _awaits_node(owned.view):
                self.breaks("I6", f"job {job_id} awaits nothing: {owned.view.tasks}")

    def turn_failed(self, what: str) -> None:
        self.breaks("turn", f"a turn of the reconciler raised: {what}")

    # --- the end ------------------------------------------------------------------------------------------------

    def at_the_end(self, home: Any) -> None:
        """Once all is quiet."""
        self._look_at_events()
        self._every_job_ended()
        self._no_machine_is_left()
        self._logs_are_whole()
        self._steps_never_fell()
        self._bills_agree()

    def _every_job_ended(self) -> None:
        for name, plan in self._world.plans.items():
            ids = self._world.accepted[name]
            if len(ids) != 1:
                self.breaks("I1", f"{name} was accepted as {sorted(ids)}")
            for job_id in ids:
                for index in range(len(plan.tasks)):
                    self._ended_truly((job_id, index), plan)

    def _ended_truly(self, key: TaskKey, plan: Any) -> None:
        status = self._tasks[key][0]
        progress = self._world.progress[key]
        task = plan.tasks[key[1]]
        finished = any(len(ranks) == plan.nodes for ranks in progress.finished.values())
        counted = [c for c in progress.failures if c not in plan.recover_codes]
        match status:
            case "SUCCEEDED":
                holds = finished
            case "CANCELLED":
                holds = plan.cancel_at is not None or (
                    key[1] > 0 and self._tasks[(key[0], key[1] - 1)][0] != "SUCCEEDED"
                )
            case "FAILED":
                holds = (len(counted) > plan.max_restarts and task.failing == "run") or progress.flush_failures > 0
            case "FAILED_SETUP":
                holds = len(counted) > plan.max_restarts and task.failing == "setup"
            case _:
                holds = False
        if not holds:
            self.breaks("I1", f"task {key} is {status}: finished {progress.finished}, failures {progress.failures}")

    def _no_machine_is_left(self) -> None:
        for name, cloud in self._world.clouds.items():
            if cloud.living():
                self.breaks("I3", f"{name} still runs {cloud.living()}")
        ghosts = self._raw.execute("select job_id, task_index, generation, state from attempt where state != 'GONE'")
        if found := ghosts.fetchall():
            self.breaks("I3", f"attempts that are believed to live: {found}")
        if self._world.buckets.there:
            self.breaks("I3", f"buckets that were to be removed: {self._world.buckets.there}")

    def _logs_are_whole(self) -> None:
        phases = {
            tuple(place): (phase, gone)
            for *place, phase, gone in self._raw.execute(
                "select job_id, task_index, generation, rank, phase, gone from node"
            )
        }
        for node in self._world.nodes.values():
            had = bytes(node.disk.log)
            kept = self._kept_log(node)
            if not had.startswith(kept):
                self.breaks("I5", f"the log of {node.name} is not what it printed: {kept!r} of {had!r}")
            phase, _ = phases.get((*node.key, node.rank), ("", None))
            given_up = node.key[2] in self._lost[node.key[:2]] or node.key[0] in self._world.hurried()
            in_order = phase == "ended" and not node.was_taken and not given_up
            if in_order and kept != had and not node.troubles:
                self.breaks("I5", f"{node.name} ended in order, {len(kept)} of {len(had)} bytes are kept")

    def _kept_log(self, node: Node) -> bytes:
        if not self._world.is_shared:
            path = NodeLogs(self._world.home).folder(node.key) / f"{node.rank}.log"
            return path.read_bytes() if path.exists() else b""
        place = "job_id = ? and task_index = ? and generation = ? and rank = ?"
        pieces = self._raw.execute(f"select data from log_chunk where {place} order by number", (*node.key, node.rank))
        return b"".join(data for (data,) in pieces)

    def _steps_never_fell(self) -> None:
        for key, progress in self._world.progress.items():
            steps = [step for _, step in progress.commits]
            if any(b <= a for a, b in itertools.pairwise(steps)):
                self.breaks("I7", f"checkpoints of {key} were committed as {progress.commits}")
        for node in self._world.nodes.values():
            for seq, at in node.acknowledged.items():
                place = (*node.key, node.rank, node.disk.checkpoints[seq - 1]["step"])
                if place not in self._told and at < self._gone_at.get(node.key, 0.0) - KNOWN_WITHIN_S:
                    self.breaks(
                        "I7", f"a checkpoint of {node.name} was acknowledged, and the timeline tells nothing of it"
                    )

    def _bills_agree(self) -> None:
        charged: dict[int, float] = defaultdict(float)
        forgotten: set[int] = set()
        for cloud in self._world.clouds.values():
            for charge in cloud.bill():
                charged[charge.owner.job_id] += charge.usd
        for node in self._world.nodes.values():
            if node.was_forgotten or (node.key in self._unknown and (node.was_taken or node.switched_off)):
                forgotten.add(node.key[0])
        for job_id, recorded in self._world.recorded_costs().items():
            # The end of a machine that had to be looked for is known to within a look.
            is_exact = all(key[0] != job_id for key in self._unknown)
            slack = 1e-6 if is_exact else 1e-6 + 0.05 * charged[job_id]
            if job_id not in forgotten and abs(recorded - charged[job_id]) > slack:
                self.breaks(
                    "I8", f"job {job_id} costs {recorded:.6f} USD by our books, {charged[job_id]:.6f} by theirs"
                )


def _awaits_node(job: JobView) -> bool:
    """Whether a connected node will tell something, or its silence will."""
    return any(n.connected and not n.has_stopped for t in job.tasks for a in t.attempts for n in a.nodes)


__all__ = ["START", "Judge", "Violation"]
