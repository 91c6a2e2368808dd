"""The world of one scenario: clouds, machines, users and controllers, which share one virtual time."""

from __future__ import annotations

import random
import shutil
import sqlite3
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from faultworld.buckets import BucketStore
from faultworld.clouds import FaultyCloud
from faultworld.clusters.checks import check_kept_disks, explains_loss, has_machines_ended
from faultworld.clusters.nodes import HostNode
from faultworld.clusters.users import ClusterUsers
from faultworld.components import KEYRING, TIMEOUTS
from faultworld.database import engine, new_database
from faultworld.fault_injection import inject
from faultworld.invariants import InvariantChecker
from faultworld.node_lifecycle import NodeLifecycle
from faultworld.nodes import Node
from faultworld.process import Process
from faultworld.scenario import JobPlan, Scenario
from faultworld.trace import Trace
from faultworld.virtual_time import START, Scheduler
from faultworld.workload import Progress
from perdure.controller.api.routes import jobs as api
from perdure.controller.clouds.fake import Faults
from perdure.controller.reconcile.work_items import JobEvent
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.engine.pg_notify import Topic
from perdure.controller.store.queries import job_listing as queries
from perdure.controller.store.queries import search
from perdure.recovery import events
from perdure.recovery.reasons import Reason

CLOUDS = ("azul", "bora")
# All faults are over long before this time. A world that is not quiet by then will never be.
MAX_DURATION_S = 2400.0
QUIET_CHECK_INTERVAL_S = 7.0
# The death of a controller is counted under this and its cause.
DEATH = "controller died: "


class World:
    """The world of one scenario. After `run`, `invariants.first_violation` is the first violation, or None."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.scheduler = Scheduler()
        self.rng = random.Random(f"{scenario.seed}:world")
        self.trace = Trace()
        self.fault_counts: Counter[str] = Counter()  # faults that had an effect, and what followed from them
        self.raw_connection: sqlite3.Connection = new_database()
        self.home = Path(tempfile.mkdtemp(prefix="faultworld-", dir=_memory_directory()))
        self.invariants = InvariantChecker(self, self.raw_connection)
        self.buckets = BucketStore(self)
        self.clouds = {name: self._cloud(name, i) for i, name in enumerate(CLOUDS[: scenario.clouds])}
        self.nodes: dict[str, Node] = {}
        plans = [*scenario.jobs, *(job for cluster in scenario.clusters for job in cluster.jobs)]
        self.job_plans: dict[str, JobPlan] = {j.name: j for j in plans}
        self.cluster_users = ClusterUsers(self)
        self.accepted: dict[str, set[int]] = defaultdict(set)  # the name of a job → the ids that its user received
        self.task_ids: dict[int, list[str]] = {}  # by job id
        self.progress: dict[tuple[int, int], Progress] = defaultdict(Progress)
        self.processes: list[Process] = []
        self._process_count = 0
        self._seems_quiet = False
        self.pending_database_failures: list[str] = []  # "begin", "commit", or "committed": the response is lost
        self.database_down_until = 0.0
        self.notifications: list[tuple[Topic, int]] = []  # of the current transaction
        self.notifications_lost_until = 0.0
        self._acknowledged_cancels: set[tuple[str, float]] = set()  # (job, when it was to be cancelled)
        self.scheduler.after_each = self._after_each

    def run(self) -> None:
        try:
            for _ in range(max(1, self.scenario.controllers)):
                self.start_process()
            for job in self.scenario.jobs:
                self._schedule_requests(job)
            self.cluster_users.schedule()
            for fault in self.scenario.faults:
                self.scheduler.at(START + fault.at, inject, self, fault)
            while not self._is_quiet():
                self.scheduler.run_until(self.scheduler.now() + QUIET_CHECK_INTERVAL_S)
                self.invariants.check_progress()
                if self.invariants.first_violation is not None:
                    return
                if self.scheduler.now() > START + MAX_DURATION_S:
                    self.invariants.report_violation("I1", f"jobs are stuck: {self._describe_unfinished()}")
                    return
            self.invariants.check_end(self.home)
        finally:
            for process in self.processes:
                process.is_alive = False
                process.threads.end()
            shutil.rmtree(self.home, ignore_errors=True)

    def record(self, subject: str, text: str) -> None:
        self.trace.record(self.scheduler.now(), subject, text)

    # --- controllers --------------------------------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        """Whether several controllers can share the database."""
        return self.scenario.controllers > 0

    def start_process(self) -> None:
        self._process_count += 1
        process = Process(self, self._process_count, self.home, alone=not self.is_shared)
        self.processes.append(process)
        self.record(process.name, "starts")
        process.within(0.3, process.start)

    def end_process(self, process: Process, cause: str) -> None:
        """End a process. Another one starts after its `restart_after_s`, or because none is left."""
        if not process.is_alive:
            return
        self.record(process.name, f"dies: {cause}")
        self.fault_counts[DEATH + cause] += 1
        process.die()
        is_last = not any(p.is_alive for p in self.processes)
        if process.restart_after_s is not None or is_last:
            self.scheduler.after(process.restart_after_s or 1.0, self.start_process)

    def serving_processes(self) -> list[Process]:
        """The controllers that serve requests now."""
        return [p for p in self.processes if p.is_serving and p.is_alive and not p.is_frozen]

    def choose_controller(self, rng: random.Random) -> Process | None:
        """Choose the controller that receives a call to the endpoint. Returns None if none serves."""
        serving = self.serving_processes()
        return rng.choice(serving) if serving else None

    def database_fails(self, process: Process, moment: str) -> bool:
        """Whether the database fails for `process` now. Uses up a pending failure."""
        if self.scheduler.now() < max(self.database_down_until, process.cut_off_until):
            return moment in ("begin", "commit")
        if moment in self.pending_database_failures:
            self.pending_database_failures.remove(moment)
            self.fault_counts[f"database: {moment}"] += 1
            return True
        return False

    def notify(self, sent: tuple[tuple[Topic, int], ...]) -> None:
        """Deliver the notifications of a transaction. SQLite has none."""
        if not self.is_shared or not sent or self.scheduler.now() < self.notifications_lost_until:
            return
        for process in self.processes:
            if process.is_serving and self.scheduler.now() >= process.cut_off_until:
                for topic, job_id in dict.fromkeys(sent):
                    process.within(0.05, process.on_notification, topic, job_id)

    def _after_each(self) -> None:
        for process in self.processes:
            process.wake_reconciler()

    # --- users --------------------------------------------------------------------------------------------

    def _schedule_requests(self, job: JobPlan) -> None:
        self.scheduler.at(START + job.at, self._submit, job)
        if job.repeat_after_s is not None:
            self.scheduler.at(START + job.at + job.repeat_after_s, self._submit, job)
        if job.cancel_at is not None:
            self.scheduler.at(START + job.cancel_at, self._cancel, job, job.grace_s, job.cancel_at)
        if job.urgent_cancel_at is not None:
            self.scheduler.at(START + job.urgent_cancel_at, self._cancel, job, 0.0, job.urgent_cancel_at)

    def _submit(self, job: JobPlan) -> None:
        """Submit the job, and retry until it is accepted."""
        process = self.choose_controller(self.rng)
        self.scheduler.after(2.0, self._retry_submit, job, set(self.accepted[job.name]))
        if process is not None:
            process.at(self.scheduler.now(), self._launch, process, job)

    def _retry_submit(self, job: JobPlan, accepted_before: set[int]) -> None:
        if not accepted_before and not self.accepted[job.name]:
            self._submit(job)

    def _launch(self, process: Process, job: JobPlan) -> None:
        body = api.LaunchBody(name=job.name, tasks=job.configs(), user="u", key=f"key-{job.name}")
        assert process.components is not None
        try:
            (answer,) = process.components.accept_all([api.submission(body)])
        except DBAPIError:
            return
        if isinstance(answer, DBAPIError):
            return
        if isinstance(answer, Exception):
            raise answer
        if answer.job_id not in self.accepted[job.name]:
            self.record("user", f"receives the id of {job.name}: job {answer.job_id}")
        self.accepted[job.name].add(answer.job_id)
        self.task_ids.setdefault(answer.job_id, list(answer.task_ids))

    def _cancel(self, job: JobPlan, grace_s: float, planned_at: float) -> None:
        """Cancel the job, and retry until that is acknowledged."""
        if (job.name, planned_at) in self._acknowledged_cancels:
            return
        self.scheduler.after(5.0, self._cancel, job, grace_s, planned_at)
        process = self.choose_controller(self.rng)
        if process is not None:
            for job_id in self.accepted[job.name]:
                process.at(self.scheduler.now(), self._post_cancel, process, job_id, grace_s, (job.name, planned_at))

    def _post_cancel(self, process: Process, job_id: int, grace_s: float, request: tuple[str, float]) -> None:
        """Handle `POST /jobs/cancel`, which waits until the cancel is recorded."""
        assert process.components is not None
        try:
            with process.database.connect() as conn:
                unfinished = search.find_ids(conn, search.Filter(limit=None, skip_finished=True, ids=(job_id,)))
        except DBAPIError:
            return
        if not unfinished:
            self._acknowledged_cancels.add(request)
            return
        recorded = process.components.inbox.submit(JobEvent(job_id, events.CancelRequested(grace_s)))
        recorded.add_done_callback(lambda _: self._on_cancel_recorded(process, job_id, request))

    def _on_cancel_recorded(self, process: Process, job_id: int, request: tuple[str, float]) -> None:
        if process.is_alive and not process.is_frozen:
            self._acknowledged_cancels.add(request)
            self.record("user", f"receives the answer that job {job_id} is cancelled")
            self.invariants.on_cancel_acknowledged(job_id)

    # --- machines -----------------------------------------------------------------------------------------

    def _cloud(self, name: str, number: int) -> FaultyCloud:
        scenario = self.scenario
        faults = Faults(
            capacity={zone: scenario.zone_capacity for zone in ("fake-1a", "fake-1b", "fake-2a")},
            boot_s=scenario.boot_s,
            listing_delay_s=scenario.listing_delay_s,
            ending_s=scenario.ending_s,
        )
        cloud = FaultyCloud(self.scheduler, name, faults, number)
        cloud.on_launched = lambda id: self._launched(cloud, id)
        cloud.on_ended = lambda id, at: self.scheduler.at(at, self.nodes[id].lose_power)
        return cloud

    def _launched(self, cloud: FaultyCloud, id: str) -> None:
        owner, rank = cloud.owner_of(id)
        key: AttemptKey = (owner.job_id, owner.task, owner.generation)
        kind = HostNode if self._is_of_cluster(owner.job_id) else Node
        node = kind(self, cloud.name, id, key, rank, KEYRING.attempt_token(key))
        if (before := self.nodes.get(id)) is not None:  # it was stopped, and is started for another attempt
            self.nodes[f"{id} of {before.name}"] = before
            self.fault_counts["a stopped machine was started"] += 1
        elif kind is HostNode:
            check_kept_disks(self, owner.job_id)
        self.nodes[id] = node
        self.record(cloud.name, f"starts {node.name}")
        self.scheduler.after(self.scenario.boot_s * self.rng.uniform(0.9, 1.3), node.boot)

    def _is_of_cluster(self, job_id: int) -> bool:
        query = "select cluster_id from job where id = ?"
        return self.raw_connection.execute(query, (job_id,)).fetchone()[0] is not None

    def power_off(self, node: NodeLifecycle) -> None:
        """A node powers itself off."""
        if node.is_on:
            self.record(node.name, "powers itself off")
            node.powered_itself_off = True
            self.clouds[node.cloud].power_off(node.machine_id)

    def fail_peers_of(self, dead: NodeLifecycle) -> None:
        """The programs of the other ranks fail soon."""
        for node in list(self.nodes.values()):
            if node.key == dead.key and node is not dead and node.is_on and node.program is not None:
                self.scheduler.after(self.rng.uniform(0.05, 3), node.program.fail_with_peer)

    def plan_of(self, job_id: int) -> JobPlan | None:
        """The plan of a job. None as long as its user has not received its id."""
        return next((plan for name, plan in self.job_plans.items() if job_id in self.accepted[name]), None)

    def progress_of(self, key: AttemptKey) -> Progress:
        return self.progress[key[:2]]

    def has_cause(self, node: Node, reason: Reason) -> bool:
        """Whether what really happened to a node explains that its attempt was lost as `reason`."""
        now = self.scheduler.now()
        match reason:
            case Reason.UNREACHABLE:  # also if its machine is gone and its cloud does not answer
                return has_machines_ended(node) or node.max_outage_s(now) >= TIMEOUTS.node_timeout_s - 25
            case Reason.BOOT_TIMEOUT:
                had_long_outage = node.max_outage_s(now) >= TIMEOUTS.boot_timeout_s - 40
                return node.is_stuck or has_machines_ended(node) or had_long_outage
            case Reason.MOUNT_LOST:
                return node.mount_was_lost
            case Reason.PREEMPTION_NOTICE:
                return node.had_notice
            case _:
                return has_machines_ended(node)

    def explains_loss(self, key: AttemptKey, reason: Reason) -> bool:
        """Whether what happened to the machines of a cluster explains that an attempt of its job was lost."""
        return explains_loss(self, key, reason)

    # --- the end ------------------------------------------------------------------------------------------

    def _is_quiet(self) -> bool:
        """Whether nothing was left to do at this check and at the one before."""
        was_quiet, self._seems_quiet = self._seems_quiet, False
        if self.scheduler.now() < self._last_request_at() or any(not self.accepted[j.name] for j in self.scenario.jobs):
            return False
        if not self.cluster_users.are_done():
            return False
        unfinished = self.raw_connection.execute("select count(*) from job where not finalized").fetchone()[0]
        has_frozen = any(p.is_alive and p.is_frozen for p in self.processes)
        self._seems_quiet = not unfinished and not has_frozen and not any(c.living() for c in self.clouds.values())
        return was_quiet and self._seems_quiet

    def jobs_cancelled_without_grace(self) -> set[int]:
        """The ids of jobs that are cancelled without a grace period."""
        plans = [j for j in self.job_plans.values() if j.urgent_cancel_at or (j.cancel_at and j.grace_s == 0)]
        return {job_id for plan in plans for job_id in self.accepted[plan.name]}

    def is_impaired(self) -> bool:
        """Whether a controller cannot work, or there is none.

        A controller may lose its lease because the database fails its commits. Then it claims no jobs for a while.
        """
        now = self.scheduler.now()
        living = [p for p in self.processes if p.is_alive]
        is_any_away = any(p.is_frozen or not p.is_serving or now < p.cut_off_until or not p.may_claim() for p in living)
        return is_any_away or not living or now < self.database_down_until

    def _last_request_at(self) -> float:
        """The time of the last planned request of a user."""
        jobs = self.scenario.jobs
        if not jobs:
            return START
        times = [(j.at + (j.repeat_after_s or 0.0), j.cancel_at or 0.0, j.urgent_cancel_at or 0.0) for j in jobs]
        return START + max(map(max, times))

    def _describe_unfinished(self) -> str:
        rows = self.raw_connection.execute("select job_id, `index`, state, reason, status from task").fetchall()
        open_intents = self.raw_connection.execute(
            "select job_id, kind, error from intent where done_at is null"
        ).fetchall()
        machines = [id for c in self.clouds.values() for id in c.living()]
        return f"tasks {rows}, open intents {open_intents}, machines {machines}"

    def recorded_costs(self) -> dict[int, float]:
        """The cost of each job, as the API returns it."""
        ids = [id for (id,) in self.raw_connection.execute("select id from job order by id")]
        costs: dict[int, float] = defaultdict(float)
        with engine().connect() as conn:
            for row in queries.describe(conn, ids, self.scheduler.now()):
                costs[row["job_id"]] += row["cost_usd"]
        return costs


def _memory_directory() -> str | None:
    """A directory in memory, if this computer has one: histories write many small logs."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
