"""What one seed stands for: jobs, their world, and a list of faults. Plain values, so a story can be shortened."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class TaskPlan:
    """What a task's workload does on each node. Times in seconds.

    `fails`: how many times `failing` ("setup" or "run", at half of the steps) goes wrong, with exit code `code`.
    """

    steps: int = 4
    step_s: float = 5.0
    setup_s: float = 2.0
    fails: int = 0
    failing: str = "run"
    code: int = 1
    save_s: float = 1.0
    handles_sigterm: bool = True

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class JobPlan:
    """A job, and what its user does. `at`: seconds from the start. `key`: submitted twice with this key, if set."""

    name: str
    at: float
    tasks: tuple[TaskPlan, ...]
    nodes: int = 1
    spot: bool = True
    max_restarts: int = 0
    recover_codes: tuple[int, ...] = ()
    bucket: str = ""  # a temporary one of this name
    repeat_after_s: float | None = None
    cancel_at: float | None = None
    grace_s: float = 10.0
    hurry_at: float | None = None

    def configs(self) -> list[dict[str, Any]]:
        """The tasks as a user would write them."""
        return [self._config(i, t) for i, t in enumerate(self.tasks)]

    def _config(self, index: int, task: TaskPlan) -> dict[str, Any]:
        recovery: dict[str, Any] = {"max_restarts_on_errors": self.max_restarts}
        if self.recover_codes:
            recovery["recover_on_exit_codes"] = list(self.recover_codes)
        config: dict[str, Any] = {
            "name": f"t{index}",
            "num_nodes": self.nodes,
            "resources": {"cpus": 4, "use_spot": self.spot, "job_recovery": recovery},
            "run": task.to_json(),
        }
        if task.setup_s > 0:
            config["setup"] = "setup"
        if self.bucket:
            store = {"name": self.bucket, "persistent": False, "mode": "MOUNT"}
            config["file_mounts"] = {"/checkpoint": store}
        return config


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong at `at` (seconds from the start). `pick` chooses whom; `amount` is the kind's own."""

    at: float
    kind: str
    pick: int = 0
    amount: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """All that a history depends on. `controllers`: how many share a database at the start; 0 for the one on SQLite."""

    seed: int
    jobs: tuple[JobPlan, ...]
    faults: tuple[Fault, ...] = ()
    controllers: int = 0
    clouds: int = 1
    zone_capacity: int = 3
    boot_s: float = 3.0
    listing_delay_s: float = 0.0
    ending_s: float = 1.0
    controller_skew_s: float = 0.0
    node_skew_s: float = 0.0
    log_lag_s: float = 0.05


# kind → (weight, lowest amount, highest amount)
FAULTS: dict[str, tuple[float, float, float]] = {
    # machines
    "preempt": (3, 0, 0),
    "notice": (4, 2, 40),
    "crash": (2, 0, 0),
    "forget": (0.5, 0, 0),
    "stuck-boot": (0.7, 0, 0),
    # the cloud's calls
    "capacity": (1.5, 20, 200),
    "quota": (1, 20, 200),
    "throttle": (2, 1, 6),
    "lost-answers": (2.5, 1, 10),
    "partial-launch": (1, 0, 2),
    "outage": (1, 5, 120),
    "stale-list": (1, 5, 60),
    "price": (0.5, 0.5, 3),
    # the network, the agents
    "break": (2.5, 0, 0),
    "half-open": (1.5, 0, 0),
    "partition": (2, 5, 250),
    "agent-crash": (1.5, 0, 0),
    "agent-stall": (1.5, 3, 60),
    "agent-vanish": (1, 0, 0),
    "repeat": (1.5, 1, 6),
    "late-notice": (1, 0, 5),
    "disk-full": (1, 5, 60),
    "mount-lost": (0.7, 0, 0),
    # the controller and its database
    "kill": (6, 1, 60),
    "take-over": (3, 1, 60),
    "stop": (1.5, 1, 400),
    "join": (1.5, 0, 0),
    "freeze": (3, 1, 60),
    "database": (3, 1, 6),
    "commit-lost": (2, 1, 3),
    "database-down": (0.7, 2, 100),
    "database-cut": (1.5, 2, 120),
    "notices-lost": (0.7, 2, 60),
    "buckets": (0.7, 5, 60),
}


# How often all jobs have one bucket.
_SHARED = 0.15

# 0: the embedded one. Half of the histories have several.
CONTROLLERS = (0, 0, 0, 1, 2, 2, 3, 4)


def scenario_of(
    seed: int, *, kinds: Sequence[str] = tuple(FAULTS), controllers: Sequence[int] = CONTROLLERS
) -> Scenario:
    """The history's plan. The same seed gives the same plan, for ever after the same code.

    `kinds`: of faults. `controllers`: how many there may be, each as likely as it is often there.
    """
    rng = random.Random(seed)
    jobs = tuple(_job(rng, f"j{n}") for n in range(rng.choice((1, 1, 1, 2, 2, 3))))
    if random.Random(f"{seed}:bucket").random() < _SHARED:
        jobs = tuple(replace(job, bucket="bucket-of-all") for job in jobs)
    count = rng.choice((0, 1, 2, 3, 3, 4, 4, 5, 6, 8))
    return Scenario(
        seed=seed,
        jobs=jobs,
        faults=tuple(sorted((_fault(rng, kinds) for _ in range(count)), key=lambda f: f.at)),
        controllers=rng.choice(controllers),
        clouds=rng.choice((1, 2)),
        zone_capacity=rng.choice((2, 3, 6)),
        boot_s=rng.choice((0.5, 3.0, 20.0)),
        listing_delay_s=rng.choice((0.0, 0.0, 2.0, 8.0)),
        ending_s=rng.choice((0.0, 1.0, 15.0)),
        controller_skew_s=rng.choice((0.0, 0.0, 0.4, 1.0)),
        node_skew_s=rng.choice((0.0, 0.0, 0.5, 1.0)),
        log_lag_s=rng.choice((0.02, 0.05, 1.0, 5.0)),
    )


def _job(rng: random.Random, name: str) -> JobPlan:
    tasks = tuple(_task(rng) for _ in range(rng.choice((1, 1, 1, 1, 2))))
    job = JobPlan(
        name,
        at=rng.uniform(0, 20),
        tasks=tasks,
        nodes=rng.choice((1, 1, 1, 2)),
        spot=rng.random() < 0.8,
        max_restarts=rng.choice((0, 1, 3)),
        recover_codes=(33,) if rng.random() < 0.3 else (),
        bucket=f"bucket-{name}" if rng.random() < 0.15 else "",
        repeat_after_s=rng.uniform(0, 30) if rng.random() < 0.2 else None,
    )
    if rng.random() < 0.25:
        cancel_at = job.at + rng.uniform(0.1, 70)
        hurry_at = cancel_at + rng.uniform(0.1, 10) if rng.random() < 0.3 else None
        job = replace(job, cancel_at=cancel_at, grace_s=rng.choice((0.0, 3.0, 20.0)), hurry_at=hurry_at)
    return job


def _task(rng: random.Random) -> TaskPlan:
    task = TaskPlan(
        steps=rng.randint(1, 6),
        step_s=rng.uniform(2, 12),
        setup_s=rng.choice((0.0, 1.0, 6.0)),
        save_s=rng.choice((0.2, 1.0, 6.0)),
        handles_sigterm=rng.random() < 0.8,
    )
    if rng.random() < 0.2:
        failing = "setup" if task.setup_s > 0 and rng.random() < 0.2 else "run"
        task = replace(task, fails=rng.choice((1, 2, 5)), failing=failing, code=rng.choice((1, 33, 137)))
    return task


def _fault(rng: random.Random, kinds: Sequence[str]) -> Fault:
    kind = rng.choices(kinds, [FAULTS[k][0] for k in kinds])[0]
    _, low, high = FAULTS[kind]
    return Fault(round(rng.uniform(0, 90), 3), kind, rng.randrange(1000), round(rng.uniform(low, high), 3))
