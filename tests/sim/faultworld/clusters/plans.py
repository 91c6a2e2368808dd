"""Plans of clusters: their machines, the jobs of their queues, and what their users request."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from faultworld.scenario import CONTROLLERS, FAULTS, JobPlan, Scenario, TaskPlan, scenario_of


@dataclass(frozen=True)
class UserRequest:
    """What the user of a cluster requests, `at` seconds after the launch is answered."""

    at: float
    kind: str  # "stop", "start" or "down"
    repeats: bool = True  # until it is answered


@dataclass(frozen=True)
class ClusterPlan:
    """A cluster, and what its user does. Times are seconds from the start of the history.

    The first of `jobs` is launched with the cluster, the others are added by `exec`. When all have ended, the user
    takes the cluster down; if it is stopped or preempted before, the user starts it again.
    """

    name: str
    at: float  # when it is launched
    jobs: tuple[JobPlan, ...]
    nodes: int = 1
    spot: bool = True
    recover: bool = False
    idle_s: float | None = None
    idle_down: bool = False
    repeat_after_s: float | None = None  # then it is launched again, with the same key
    requests: tuple[UserRequest, ...] = ()
    kills: int = 0  # so many controllers die while they handle a request of this user, at any of their steps
    kills_at: str = ""  # the only kind of request at which they die: then at the first ones; "": at any
    kill_step: int = 0  # the step after which they die; 0: any

    @property
    def may_end_early(self) -> bool:
        """Whether it may be down before all of its jobs have ended."""
        return self.idle_down or any(request.kind == "down" for request in self.requests)

    def launch_config(self) -> dict[str, Any]:
        """The task of the launch as a user would write it."""
        machines = {"cpus": 4, "use_spot": self.spot}
        return {**self.exec_config(self.jobs[0]), "num_nodes": self.nodes, "resources": machines}

    def exec_config(self, job: JobPlan) -> dict[str, Any]:
        """The task of a job as a user would write it."""
        (task,) = job.tasks
        config = {"name": job.name, "num_nodes": job.nodes, "resources": {"cpus": job.cpus}, "run": task.to_json()}
        return {**config, "setup": "setup"} if task.setup_s > 0 else config


def cluster_scenario_of(
    seed: int, *, kinds: Sequence[str] = tuple(FAULTS), controllers: Sequence[int] = CONTROLLERS
) -> Scenario:
    """The scenario of a seed with one or two clusters, sometimes beside a managed job."""
    rng = random.Random(f"{seed}:clusters")
    base = scenario_of(seed, kinds=kinds, controllers=controllers)
    clusters = tuple(_cluster(rng, f"c{number}") for number in range(rng.choice((1, 1, 1, 2))))
    return replace(base, jobs=base.jobs[:1] if rng.random() < 0.25 else (), clusters=clusters)


def _cluster(rng: random.Random, name: str) -> ClusterPlan:
    at, nodes = rng.uniform(0, 15), rng.choice((1, 1, 2))
    first = replace(_job(rng, f"{name}-j0", at, nodes), nodes=nodes)
    others = (_job(rng, f"{name}-j{n}", at + rng.uniform(0, 60), nodes) for n in range(1, rng.choice((2, 3, 5))))
    plan = ClusterPlan(
        name,
        at,
        (first, *others),
        nodes=nodes,
        spot=rng.random() < 0.8,
        recover=rng.random() < 0.4,
        repeat_after_s=rng.uniform(0, 30) if rng.random() < 0.2 else None,
        requests=_requests(rng),
        kills=rng.choice((0, 0, 1, 2, 3)),
    )
    if rng.random() < 0.25:
        plan = replace(plan, idle_s=rng.choice((0.0, 5.0, 30.0)), idle_down=rng.random() < 0.4)
    return plan


def _requests(rng: random.Random) -> tuple[UserRequest, ...]:
    at, requests = 0.0, list[UserRequest]()
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        at += rng.uniform(0.1, 40)
        requests.append(UserRequest(at, "stop", repeats=rng.random() < 0.7))
        at += rng.choice((0.0, 0.5, 15.0))
        requests.append(UserRequest(at, "start", repeats=rng.random() < 0.7))
    if rng.random() < 0.15:
        requests.append(UserRequest(at + rng.uniform(0.1, 40), "down"))
    return tuple(requests)


def _job(rng: random.Random, name: str, at: float, nodes: int) -> JobPlan:
    task = TaskPlan(
        steps=rng.randint(1, 4),
        step_s=rng.uniform(1, 8),
        setup_s=rng.choice((0.0, 1.0)),
        save_s=rng.choice((0.2, 1.0, 6.0)),
        handles_sigterm=rng.random() < 0.8,
    )
    if rng.random() < 0.15:
        task = replace(task, failures=5, exit_code=rng.choice((1, 137)))
    job = JobPlan(name, at, (task,), nodes=rng.choice((1, nodes)), cpus=rng.choice((1, 2, 4)), is_of_cluster=True)
    return replace(job, cancel_at=at + rng.uniform(0.1, 60)) if rng.random() < 0.15 else job
