"""Scenarios: the jobs, the world and the faults of a seed. They are plain values, so that they can be shortened."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from faultworld.clusters.plans import ClusterPlan


@dataclass(frozen=True)
class TaskPlan:
    """What a task's workload does on each node."""

    steps: int = 4
    step_s: float = 5.0
    setup_s: float = 2.0
    failures: int = 0  # how many times `failing_stage` fails
    failing_stage: str = "run"  # "setup", or "run": after half of the steps
    exit_code: int = 1  # of a failure
    save_s: float = 1.0  # how long a save takes after SIGTERM
    handles_sigterm: bool = True

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class JobPlan:
    """A job, and what its user does. Times are seconds from the start of the history."""

    name: str
    at: float  # when it is submitted
    tasks: tuple[TaskPlan, ...]
    nodes: int = 1
    cpus: int = 4
    spot: bool = True
    max_restarts: int = 0
    recovered_exit_codes: tuple[int, ...] = ()  # failures with them count as recoveries, not as restarts
    bucket: str = ""  # the name of its temporary bucket
    repeat_after_s: float | None = None  # then it is submitted again, with the same key
    cancel_at: float | None = None
    grace_s: float = 10.0  # of the cancel
    urgent_cancel_at: float | None = None  # when it is cancelled again, without a grace period
    is_of_cluster: bool = False

    def configs(self) -> list[dict[str, Any]]:
        """The tasks as a user would write them."""
        return [self._config(i, t) for i, t in enumerate(self.tasks)]

    def _config(self, index: int, task: TaskPlan) -> dict[str, Any]:
        recovery: dict[str, Any] = {"max_restarts_on_errors": self.max_restarts}
        if self.recovered_exit_codes:
            recovery["recover_on_exit_codes"] = list(self.recovered_exit_codes)
        config: dict[str, Any] = {
            "name": f"t{index}",
            "num_nodes": self.nodes,
            "resources": {"cpus": self.cpus, "use_spot": self.spot, "job_recovery": recovery},
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
    """A fault to inject."""

    at: float  # seconds from the start
    kind: str
    pick: int = 0  # selects the machine, cloud or controller that it hits
    amount: float = 0.0  # its meaning depends on the kind


@dataclass(frozen=True)
class Scenario:
    """Everything that a history depends on."""

    seed: int
    jobs: tuple[JobPlan, ...]
    faults: tuple[Fault, ...] = ()
    clusters: tuple[ClusterPlan, ...] = ()
    controllers: int = 0  # how many share the database at the start; 0: a single controller on SQLite
    clouds: int = 1
    zone_capacity: int = 3
    boot_s: float = 3.0
    listing_delay_s: float = 0.0
    ending_s: float = 1.0  # how long a machine takes to terminate
    controller_skew_s: float = 0.0  # the most by which a controller's clock is off
    node_skew_s: float = 0.0
    log_lag_s: float = 0.05  # the most by which a node sends its log late


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
    "disconnect": (2.5, 0, 0),
    "half-open": (1.5, 0, 0),
    "partition": (2, 5, 250),
    "agent-crash": (1.5, 0, 0),
    "agent-stall": (1.5, 3, 60),
    "agent-vanish": (1, 0, 0),
    "repeat": (1.5, 1, 6),
    "hostile-frame": (1.5, 1, 4),
    "late-notice": (1, 0, 5),
    "disk-full": (1, 5, 60),
    "mount-lost": (0.7, 0, 0),
    # the controller and its database
    "kill": (6, 1, 60),
    "take-over": (3, 1, 60),
    "stop": (1.5, 1, 400),
    "join": (1.5, 0, 0),
    "freeze": (3, 1, 60),
    "database-errors": (3, 1, 6),
    "commit-lost": (2, 1, 3),
    "database-down": (0.7, 2, 100),
    "database-partition": (1.5, 2, 120),
    "notifications-lost": (0.7, 2, 60),
    "bucket-outage": (0.7, 5, 60),
}


# Only in histories that ask for them: a job that lies about its machines ends late, which says nothing of the others.
HOSTILE_FAULTS: dict[str, tuple[float, float, float]] = {
    "false-notices": (6, 200, 1500),  # how long the job sends them
}

# The probability that all jobs share a bucket.
_SHARED_BUCKET_CHANCE = 0.15

# 0: a single controller on SQLite. Half of the histories have several.
CONTROLLERS = (0, 0, 0, 1, 2, 2, 3, 4)


def scenario_of(
    seed: int, *, kinds: Sequence[str] = tuple(FAULTS), controllers: Sequence[int] = CONTROLLERS
) -> Scenario:
    """The scenario of a seed: always the same one, until this code changes.

    `kinds` are the kinds of faults that may occur. `controllers` are the possible numbers of controllers; a number that
    is listed twice is twice as likely.
    """
    rng = random.Random(seed)
    jobs = tuple(_job(rng, f"j{n}") for n in range(rng.choice((1, 1, 1, 2, 2, 3))))
    if random.Random(f"{seed}:bucket").random() < _SHARED_BUCKET_CHANCE:
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
        recovered_exit_codes=(33,) if rng.random() < 0.3 else (),
        bucket=f"bucket-{name}" if rng.random() < 0.15 else "",
        repeat_after_s=rng.uniform(0, 30) if rng.random() < 0.2 else None,
    )
    if rng.random() < 0.25:
        cancel_at = job.at + rng.uniform(0.1, 70)
        urgent_cancel_at = cancel_at + rng.uniform(0.1, 10) if rng.random() < 0.3 else None
        job = replace(job, cancel_at=cancel_at, grace_s=rng.choice((0.0, 3.0, 20.0)), urgent_cancel_at=urgent_cancel_at)
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
        failing_stage = "setup" if task.setup_s > 0 and rng.random() < 0.2 else "run"
        failures, exit_code = rng.choice((1, 2, 5)), rng.choice((1, 33, 137))
        task = replace(task, failures=failures, failing_stage=failing_stage, exit_code=exit_code)
    return task


def _fault(rng: random.Random, kinds: Sequence[str]) -> Fault:
    known = FAULTS | HOSTILE_FAULTS
    kind = rng.choices(kinds, [known[k][0] for k in kinds])[0]
    _, low, high = known[kind]
    return Fault(round(rng.uniform(0, 90), 3), kind, rng.randrange(1000), round(rng.uniform(low, high), 3))
