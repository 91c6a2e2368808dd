"""A whole world for one scenario: clouds, machines, users, controllers one after another, and one time for all."""

from __future__ import annotations

import random
import shutil
import sqlite3
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from faultworld.clouds import StormCloud
from faultworld.database import engine, new_database
from faultworld.judge import Judge
from faultworld.misfortune import strike
from faultworld.nodes import Node
from faultworld.parts import KEYRING, LIMITS, BucketStore
from faultworld.process import Process
from faultworld.scenario import JobPlan, Scenario
from faultworld.story import Story
from faultworld.timing import START, Scheduler
from faultworld.workload import Progress
from perdure.controller.api import jobs as api
from perdure.controller.clouds.fake import Faults
from perdure.controller.keyring import AttemptKey
from perdure.controller.store import queries, search
from perdure.controller.store.wake import Topic
from perdure.controller.turns import Turn
from perdure.recovery import events
from perdure.recovery.reasons import Reason

CLOUDS = ("azul", "bora")
# All faults are over long before; what has not come to rest by then never will.
HORIZON_S = 2400.0
QUIET_LOOK_S = 7.0


class World:
    """`run` lets the scenario happen. `judge.first` is the first violation, if there was one."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.scheduler = Scheduler()
        self.rng = random.Random(f"{scenario.seed}:world")
        self.story = Story()
        self.met: Counter[str] = Counter()
        self.raw: sqlite3.Connection = new_database()
        self.home = Path(tempfile.mkdtemp(prefix="faultworld-", dir=_memory()))
        self.judge = Judge(self, self.raw)
        self.buckets = BucketStore(self)
        self.clouds = {name: self._cloud(name, i) for i, name in enumerate(CLOUDS[: scenario.clouds])}
        self.nodes: dict[str, Node] = {}
        self.plans: dict[str, JobPlan] = {j.name: j for j in scenario.jobs}
        self.accepted: dict[str, set[int]] = defaultdict(set)
        self.task_ids: dict[int, list[str]] = {}
        self.progress: dict[tuple[int, int], Progress] = defaultdict(Progress)
        self.processes: list[Process] = []
        self._starts = 0
        self._seems_quiet = False
        self.database_troubles: list[str] = []
        self.database_down_until = 0.0
        self.notices: list[tuple[Topic, int]] = []  # what the transaction under way wants the others told
        self.notices_lost_until = 0.0
        self._acknowledged: set[tuple[str, float]] = set()
        self.scheduler.after_each = self._after_each

    def run(self) -> None:
        try:
            for _ in range(max(1, self.scenario.controllers)):
                self.start_process()
            for job in self.scenario.jobs:
                self._plan(job)
            for fault in self.scenario.faults:
                self.scheduler.at(START + fault.at, strike, self, fault)
            while not self._is_quiet():
                self.scheduler.run_until(self.scheduler.now() + QUIET_LOOK_S)
                self.judge.looks_around()
                if self.judge.first is not None:
                    return
                if self.scheduler.now() > START + HORIZON_S:
                    self.judge.breaks("I1", f"nothing moves any more: {self._unsettled()}")
                    return
            self.judge.at_the_end(self.home)
        finally:
            for process in self.processes:
                process.is_alive = False
                process.threads.end()
            shutil.rmtree(self.home, ignore_errors=True)

    def tell(self, who: str, what: str) -> None:
        self.story.tell(self.scheduler.now(), who, what)

    # --- controllers --------------------------------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        """Whether the database is one of several controllers."""
        return self.scenario.controllers > 0

    def start_process(self) -> None:
        self._starts += 1
        process = Process(self, self._starts, self.home, alone=not self.is_shared)
        self.processes.append(process)
        self.tell(process.name, "starts")
        process.soon(0.3, process.begin)

    def process_dies(self, process: Process, where: str) -> None:
        """It dies here and now. Another one starts after a while, as its `then_s` says, or because none is left."""
        if not process.is_alive:
            return
        self.tell(process.name, f"dies: {where}")
        self.met[f"killed: {where}"] += 1
        process.die()
        is_last = not any(p.is_alive for p in self.processes)
        if process.then_s is not None or is_last:
            self.scheduler.after(process.then_s or 1.0, self.start_process)

    def living(self) -> list[Process]:
        """The controllers that answer, or would if they had their database."""
        return [p for p in self.processes if p.serves and p.is_alive and not p.is_frozen]

    def front(self, rng: random.Random) -> Process | None:
        """The controller that gets a call to the endpoint; None when nobody does."""
        serving = self.living()
        return rng.choice(serving) if serving else None

    def database_trouble(self, process: Process, moment: str) -> bool:
        """Whether the database fails `process` now."""
        if self.scheduler.now() < max(self.database_down_until, process.cut_off_until):
            return moment in ("begin", "commit")
        if moment in self.database_troubles:
            self.database_troubles.remove(moment)
            self.met[f"database: {moment}"] += 1
            return True
        return False

    def notify(self, told: tuple[tuple[Topic, int], ...]) -> None:
        """A transaction's notices go to whoever listens; on SQLite that is nobody."""
        if not self.is_shared or not told or self.scheduler.now() < self.notices_lost_until:
            return
        for process in self.processes:
            if process.serves and self.scheduler.now() >= process.cut_off_until:
                for topic, job_id in dict.fromkeys(told):
                    process.soon(0.05, process.is_told, topic, job_id)

    def _after_each(self) -> None:
        for process in self.processes:
            process.look_for_work()

    # --- users --------------------------------------------------------------------------------------------

    def _plan(self, job: JobPlan) -> None:
        self.scheduler.at(START + job.at, self._submit, job)
        if job.repeat_after_s is not None:
            self.scheduler.at(START + job.at + job.repeat_after_s, self._submit, job)
        if job.cancel_at is not None:
            self.scheduler.at(START + job.cancel_at, self._cancel, job, job.grace_s, job.cancel_at)
        if job.hurry_at is not None:
            self.scheduler.at(START + job.hurry_at, self._cancel, job, 0.0, job.hurry_at)

    def _submit(self, job: JobPlan) -> None:
        """The user tries until it is answered."""
        process = self.front(self.rng)
        self.scheduler.after(2.0, self._submit_again, job, set(self.accepted[job.name]))
        if process is not None:
            process.at(self.scheduler.now(), self._launch, process, job)

    def _submit_again(self, job: JobPlan, known: set[int]) -> None:
        if not known and not self.accepted[job.name]:
            self._submit(job)

    def _launch(self, process: Process, job: JobPlan) -> None:
        body = api.Launch(name=job.name, tasks=job.configs(), user="u", key=f"key-{job.name}")
        assert process.parts is not None
        try:
            (answer,) = process.parts.services.intake.take_all([api.submission(body)])
        except DBAPIError:
            return
        if isinstance(answer, DBAPIError):
            return
        if isinstance(answer, Exception):
            raise answer
        if answer.job_id not in self.accepted[job.name]:
            self.tell("user", f"is told that {job.name} is job {answer.job_id}")
        self.accepted[job.name].add(answer.job_id)
        self.task_ids.setdefault(answer.job_id, list(answer.task_ids))

    def _cancel(self, job: JobPlan, grace_s: float, wish: float) -> None:
        if (job.name, wish) in self._acknowledged:
            return
        self.scheduler.after(5.0, self._cancel, job, grace_s, wish)
        process = self.front(self.rng)
        if process is not None:
            for job_id in self.accepted[job.name]:
                process.at(self.scheduler.now(), self._post_cancel, process, job_id, grace_s, (job.name, wish))

    def _post_cancel(self, process: Process, job_id: int, grace_s: float, wish: tuple[str, float]) -> None:
        """As the handler of `POST /jobs/cancel`, which waits until it is recorded."""
        assert process.parts is not None
        try:
            with process.database.connect() as conn:
                unfinished = search.find_ids(conn, search.Filter(limit=None, skip_finished=True, ids=(job_id,)))
        except DBAPIError:
            return
        if not unfinished:
            self._acknowledged.add(wish)
            return
        done = process.parts.reconciler.post(Turn(job_id, events.CancelRequested(grace_s)))
        done.add_done_callback(lambda _: self._cancelled(process, job_id, wish))

    def _cancelled(self, process: Process, job_id: int, wish: tuple[str, float]) -> None:
        if process.is_alive and not process.is_frozen:
            self._acknowledged.add(wish)
            self.tell("user", f"is told that job {job_id} is cancelled")
            self.judge.cancel_acknowledged(job_id)

    # --- machines -----------------------------------------------------------------------------------------

    def _cloud(self, name: str, number: int) -> StormCloud:
        scenario = self.scenario
        faults = Faults(
            capacity={zone: scenario.zone_capacity for zone in ("fake-1a", "fake-1b", "fake-2a")},
            boot_s=scenario.boot_s,
            listing_delay_s=scenario.listing_delay_s,
            ending_s=scenario.ending_s,
        )
        cloud = StormCloud(self.scheduler, name, faults, number)
        cloud.born = lambda id: self._born(cloud, id)
        cloud.ends = lambda id, at: self.scheduler.at(at, self.nodes[id].power_lost)
        return cloud

    def _born(self, cloud: StormCloud, id: str) -> None:
        owner, rank = cloud.owner_of(id)
        key: AttemptKey = (owner.job_id, owner.task, owner.generation)
        node = Node(self, cloud.name, id, key, rank, KEYRING.attempt_token(key))
        self.nodes[id] = node
        self.tell(cloud.name, f"starts {node.name}")
        self.scheduler.after(self.scenario.boot_s * self.rng.uniform(0.9, 1.3), node.boot)

    def powers_off(self, node: Node) -> None:
        if node.is_on:
            self.tell(node.name, "switches itself off")
            node.switched_off = True
            self.clouds[node.cloud].power_off(node.machine_id)

    def peer_died(self, dead: Node) -> None:
        for node in list(self.nodes.values()):
            if node.key == dead.key and node is not dead and node.is_on and node.program is not None:
                self.scheduler.after(self.rng.uniform(0.05, 3), node.program.fail_with_peer)

    def plan_of(self, job_id: int) -> JobPlan | None:
        """What its user meant by a job; None before the user was told of it."""
        return next((plan for name, plan in self.plans.items() if job_id in self.accepted[name]), None)

    def progress_of(self, key: AttemptKey) -> Progress:
        return self.progress[key[:2]]

    def has_cause(self, node: Node, reason: Reason) -> bool:
        """Whether what truly happened to a node explains that its attempt was given up as `reason`."""
        now = self.scheduler.now()
        match reason:
            case Reason.UNREACHABLE:  # or its machine is gone, and its cloud answers nobody
                return node.was_taken or node.longest_trouble(now) >= LIMITS.silent_s - 25
            case Reason.BOOT_TIMEOUT:
                in_vain = node.longest_trouble(now) >= LIMITS.boot_timeout_s - 40
                return node.is_stuck or node.was_taken or in_vain
            case Reason.MOUNT_LOST:
                return node.mount_was_lost
            case Reason.PREEMPTION_NOTICE:
                return node.was_noticed
            case _:
                return node.was_taken

    # --- the end ------------------------------------------------------------------------------------------

    def _is_quiet(self) -> bool:
        """Nothing is left to do, nobody is still to be heard of, and so it was at the last look, too."""
        was_quiet, self._seems_quiet = self._seems_quiet, False
        if self.scheduler.now() < self._last_wish() or any(not self.accepted[j] for j in self.plans):
            return False
        unsettled = self.raw.execute("select count(*) from job where not settled").fetchone()[0]
        is_away = any(p.is_alive and p.is_frozen for p in self.processes)
        self._seems_quiet = not unsettled and not is_away and not any(c.living() for c in self.clouds.values())
        return was_quiet and self._seems_quiet

    def hurried(self) -> set[int]:
        """Jobs whose user would not wait for their end."""
        hasty = [j.name for j in self.plans.values() if j.hurry_at or (j.cancel_at and j.grace_s == 0)]
        return {job_id for name in hasty for job_id in self.accepted[name]}

    def is_in_trouble(self) -> bool:
        """Whether some controller can not do what it should, or there is none."""
        now = self.scheduler.now()
        living = [p for p in self.processes if p.is_alive]
        away = any(p.is_frozen or not p.serves or now < p.cut_off_until for p in living)
        return away or not living or now < self.database_down_until

    def _last_wish(self) -> float:
        """When the last user says the last thing that is planned."""
        jobs = self.scenario.jobs
        wishes = [(j.at, j.at + (j.repeat_after_s or 0.0), j.cancel_at or 0.0, j.hurry_at or 0.0) for j in jobs]
        return START + max(map(max, wishes))

    def _unsettled(self) -> str:
        rows = self.raw.execute("select job_id, `index`, state, reason, status from task").fetchall()
        open_intents = self.raw.execute("select job_id, kind, error from intent where done_at is null").fetchall()
        machines = [id for c in self.clouds.values() for id in c.living()]
        return f"tasks {rows}, open intents {open_intents}, machines {machines}"

    def recorded_costs(self) -> dict[int, float]:
        """What the API tells each job's user that it cost."""
        ids = [id for found in self.accepted.values() for id in found]
        costs: dict[int, float] = defaultdict(float)
        with engine().connect() as conn:
            for row in queries.describe(conn, ids, self.scheduler.now()):
                costs[row["job_id"]] += row["cost_usd"]
        return costs


def _memory() -> str | None:
    """A folder in memory where there is one: logs are small, and many histories write some."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
