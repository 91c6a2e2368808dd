"""Which node a name stands for, such as `job-17-worker1`, or `dev-worker1` for a cluster.

Every kind of thing that has nodes adds a resolver to `RESOLVERS`: a function that returns the node of a name, or None
for a name that is not of its kind.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from perdure.controller.clouds import registry
from perdure.controller.store.access import owners
from perdure.controller.store.records import clusters, jobs
from perdure.controller.store.records.agent_connections import Place
from perdure.controller.submit.errors import RequestRejected
from perdure.recovery.job import AttemptView, JobView
from perdure.recovery.statuses import AttemptState

_JOB = re.compile(r"(?:job-)?([1-9][0-9]{0,17})(?:-worker([1-9][0-9]{0,4}))?")
_CLUSTER_NODE = re.compile(r"(.+)-worker([1-9][0-9]{0,4})")
_NAMES = "names: job-ID or CLUSTER for the first node, job-ID-workerN or CLUSTER-workerN for the others"


@dataclass(frozen=True)
class NamedNode:
    """A node that can be entered. `name`: its canonical name, also if it was called by another one.

    `host`: what its ssh host key belongs to, which stays the same when the name stands for another machine.
    """

    name: str
    place: Place
    cloud: str
    num_nodes: int
    host: str

    @property
    def job_id(self) -> int:
        return self.place[0][0]


Resolver = Callable[[Connection, str, str | None], NamedNode | None]


def node_name(job_id: int, rank: int) -> str:
    """The canonical name of a node of a job."""
    return f"job-{job_id}" if rank == 0 else f"job-{job_id}-worker{rank}"


def cluster_node_name(cluster: str, rank: int) -> str:
    """The canonical name of a node of a cluster."""
    return cluster if rank == 0 else f"{cluster}-worker{rank}"


def login_user(cloud: str) -> str:
    """The user as whom the agent runs on the machines of a cloud, and as whom ssh logs in."""
    descriptor = registry.descriptors().get(cloud)
    if descriptor is None or not descriptor.runs_on_controller:
        return "root"
    return pwd.getpwuid(os.geteuid()).pw_name


def resolve(conn: Connection, name: str, user: str | None = None) -> NamedNode:
    """The node that `name` stands for now. `user`: whose nodes may be named; None: those of everybody.

    Raises RequestRejected: 404 for an unknown name and for another user's, 409 without a machine.
    """
    for resolver in RESOLVERS:
        if (node := resolver(conn, name, user)) is not None:
            return node
    raise RequestRejected(f"no job or cluster is called {name[:80]!r}", where="name", fix=_NAMES, status=404)


def resolve_job(conn: Connection, name: str, user: str | None = None) -> NamedNode | None:
    """The node of a job's name: `17`, `job-17`, `job-17-worker1`."""
    match = _JOB.fullmatch(name)
    if match is None:
        return None
    job_id, rank = int(match[1]), int(match[2] or 0)
    is_visible = user is None or owners.owned_jobs(conn, [job_id], user)
    view = jobs.load(conn, [job_id]).get(job_id) if is_visible else None
    if view is None:
        raise RequestRejected(f"there is no job {job_id}", where="name", fix="see `perdure jobs queue -a`", status=404)
    task_index, attempt = _live_attempt(view)
    if rank >= len(attempt.nodes):
        names = ", ".join(node_name(job_id, node.rank) for node in attempt.nodes)
        raise RequestRejected(f"job {job_id} has no node {rank}", where="name", fix=f"nodes: {names}", status=404)
    place = (job_id, task_index, attempt.generation), rank
    return NamedNode(node_name(job_id, rank), place, attempt.offer.cloud, len(attempt.nodes), str(job_id))


def resolve_cluster(conn: Connection, name: str, user: str | None = None) -> NamedNode | None:
    """The node of a cluster's name: `dev`, `dev-worker1`. Its machines are those of the job that holds them."""
    cluster, rank = clusters.find(conn, name, user=user), 0
    if cluster is None and (match := _CLUSTER_NODE.fullmatch(name)) is not None:
        cluster, rank = clusters.find(conn, match[1], user=user), int(match[2])
    if cluster is None:
        return None
    if cluster.wanted != clusters.UP:
        message, fix = f"the cluster {cluster.name} is stopped", f"start it: perdure start {cluster.name}"
        raise RequestRejected(message, where="name", fix=fix, status=409)
    host = clusters.hosts(conn, [cluster.id]).get(cluster.id)
    view = jobs.load(conn, [host.job_id]).get(host.job_id) if host is not None else None
    candidates = _entered_attempts(view) if view is not None else []
    if not candidates:
        fix = f"see `perdure status {cluster.name}`"
        raise RequestRejected(f"the cluster {cluster.name} has no machine now", where="name", fix=fix, status=409)
    assert host is not None
    task_index, attempt = candidates[-1]
    if rank >= len(attempt.nodes):
        known = ", ".join(cluster_node_name(cluster.name, node.rank) for node in attempt.nodes)
        message = f"the cluster {cluster.name} has no node {rank}"
        raise RequestRejected(message, where="name", fix=f"nodes: {known}", status=404)
    place = (host.job_id, task_index, attempt.generation), rank
    own_name = cluster_node_name(cluster.name, rank)
    return NamedNode(own_name, place, attempt.offer.cloud, len(attempt.nodes), f"cluster-{cluster.id}")


def _live_attempt(view: JobView) -> tuple[int, AttemptView]:
    """The attempt whose machines are entered. Raises RequestRejected."""
    candidates = _entered_attempts(view)
    if not candidates:
        if view.has_ended:
            message, fix = (
                "has ended, and so have its machines",
                "launch with --keep-on-failure 30m to keep them a while",
            )
        else:
            message, fix = "has no machine now", "try again when it runs"
        raise RequestRejected(f"job {view.id} {message}", where="name", fix=fix, status=409)
    return candidates[-1]


def _entered_attempts(view: JobView) -> list[tuple[int, AttemptView]]:
    """The attempts that have machines, each with the index of its task; those that run if there are any."""
    candidates = [
        (task.index, attempt)
        for task in view.tasks
        for attempt in task.attempts
        if attempt.state is not AttemptState.REQUESTED and attempt.is_live and not attempt.terminating
    ]
    running = [candidate for candidate in candidates if candidate[1].state is AttemptState.RUNNING]
    return running or candidates


RESOLVERS: tuple[Resolver, ...] = (resolve_job, resolve_cluster)
