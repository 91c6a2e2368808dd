"""What a request about a cluster asks for and returns, and why it is rejected. `clusters` carries it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from perdure.controller.store.clusters.idle_rules import IdleRule, WaitFor
from perdure.controller.submit.cluster.autostop import parse_autostop
from perdure.controller.submit.compiler import parse_tasks
from perdure.controller.submit.errors import RequestRejected
from perdure.sdk import Task


@dataclass(frozen=True)
class LaunchOptions:
    """How a cluster is launched. `autostop_s`: None leaves that of the cluster as it is."""

    with_setup: bool = True
    with_job: bool = True
    autostop_s: float | None = None
    autostop_down: bool = False
    idle: IdleRule = field(default_factory=IdleRule)
    recover: bool = False
    command: str = ""
    limit_s: float | None = None


@dataclass(frozen=True)
class OfCluster:
    """The cluster that a request was about, and the number and id of the job that it added, if any."""

    cluster_id: int
    name: str
    number: int | None = None
    job_id: int | None = None
    warnings: tuple[str, ...] = ()


def parse_one_task(config: Mapping[str, Any]) -> Task:
    (task,) = parse_tasks([config])
    return task


def with_autostop(options: LaunchOptions, task: Task) -> LaunchOptions:
    """The options, completed by `resources.autostop` of the task unless they say when the cluster stops."""
    request = parse_autostop(next(iter(task.resources)).autostop)
    if request is None or options.autostop_s is not None:
        return options
    wait_for = options.idle.wait_for if request.wait_for is None else WaitFor(request.wait_for)
    below = options.idle.below if request.below is None else request.below
    return replace(options, autostop_s=request.idle_s, autostop_down=request.down, idle=checked_rule(wait_for, below))


def checked_rule(wait_for: WaitFor, below: float | None) -> IdleRule:
    """Raises RequestRejected if the two contradict each other."""
    if wait_for is WaitFor.NONE and below is not None:
        message = "with wait_for `none`, a cluster stops whatever its machines do, so a floor has no effect"
        raise RequestRejected(message, where="idle_below", fix="leave one of the two out")
    return IdleRule(wait_for, below)


def name_is_taken(name: str) -> RequestRejected:
    message = f"the name {name} is in use by a cluster of another user"
    return RequestRejected(message, where="name", fix="choose another name", status=409)


def no_such_cluster(name: str) -> RequestRejected:
    return RequestRejected(f"Cluster {name!r} does not exist", fix="see `perdure status`", status=404)
