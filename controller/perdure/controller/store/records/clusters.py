"""Reads and writes clusters, the jobs that hold their machines, and the jobs in their queues."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, case, func, insert, literal, select, union, update

from perdure.controller.store.records.jobs import KEY_SEPARATOR, Attempt, Job, Node, Task
from perdure.controller.store.tables import ClusterRow
from perdure.recovery.market.slot_queue import Demand, NodeRoom, QueuedJob
from perdure.recovery.statuses import AttemptState, TaskState

Cluster = ClusterRow.__table__  # type: ignore[attr-defined]


UP, STOPPED, DOWN = "UP", "STOPPED", "DOWN"
"""What a user requests of a cluster (`cluster.wanted`)."""

IS_HOST = and_(Job.c.cluster_id.is_not(None), Job.c.cluster_job.is_(None))
"""Whether a job holds the machines of a cluster, whose name it has."""
SHOWN_NAME = case((IS_HOST, literal("cluster ") + Job.c.name), else_=Job.c.name)
"""The name of what machines are paid for: a job, or a cluster."""

_HOST_IDS = (
    select(Job.c.cluster_id, func.max(Job.c.id).label("job_id"))
    .where(Job.c.cluster_id.in_(bindparam("cluster_ids", expanding=True)), Job.c.cluster_job.is_(None))
    .group_by(Job.c.cluster_id)
    .subquery()
)
_HOST_COLUMNS = ("job_id", "status", "state", "reason", "outcome", "message", "has_run", "num_nodes")
_HOSTS = (
    select(_HOST_IDS.c.cluster_id, Job.c.finalized, Job.c.cancel_at, Job.c.submitted_at, Job.c.idempotency_key)
    .add_columns(*(Task.c[name] for name in _HOST_COLUMNS))
    .join(Task, Task.c.job_id == _HOST_IDS.c.job_id)
    .join(Job, Job.c.id == _HOST_IDS.c.job_id)
)
_NOT_GONE = Attempt.c.state != AttemptState.GONE.value
_ATTEMPTS = (
    select(Attempt)
    .where(Attempt.c.job_id.in_(bindparam("job_ids", expanding=True)), _NOT_GONE)
    .order_by(Attempt.c.generation)
)
_NODES = (
    select(Node.c.job_id, Node.c.generation, Node.c.rank, Node.c.ip, Node.c.instance_id, Node.c.connected)
    .where(Node.c.job_id.in_(bindparam("job_ids", expanding=True)))
    .order_by(Node.c.rank)
)
_WAITING = (
    select(Job.c.id, Job.c.cluster_job, Task.c.state, Task.c.num_nodes, Task.c.spec["slot"].label("slot"))
    .join(Task, Task.c.job_id == Job.c.id)
    .where(
        Job.c.cluster_id == bindparam("of_cluster"),
        Job.c.cluster_job.is_not(None),
        Job.c.finalized.is_(False),
        Job.c.cancel_at.is_(None),
        Task.c.outcome.is_(None),
        Task.c.state.in_((TaskState.WAITING.value, TaskState.PROVISIONING.value)),
    )
    .order_by(Job.c.cluster_job)
)
_UNFINISHED = (
    select(Job.c.id)
    .join(Task, Task.c.job_id == Job.c.id)
    .where(
        Job.c.cluster_id == bindparam("of_cluster"),
        Job.c.cluster_job.is_not(None),
        Job.c.finalized.is_(False),  # for the index: past jobs are not read
        Task.c.state != TaskState.ENDED.value,
    )
)
_NUMBERED = (
    select(Job.c.id, Job.c.cluster_job)
    .where(Job.c.cluster_id == bindparam("of_cluster"), Job.c.cluster_job.is_not(None))
    .order_by(Job.c.cluster_job)
)
_LAST_END = (
    select(func.max(Task.c.ended_at))
    .join(Job, Job.c.id == Task.c.job_id)
    .where(Job.c.cluster_id == bindparam("of_cluster"), Job.c.cluster_job.is_not(None))
)
_LIMITS = (
    select(Task.c.job_id, Task.c.run_since, Task.c.run_seconds, Task.c.recovery, Task.c.spec["slot"].label("slot"))
).where(Task.c.job_id.in_(bindparam("job_ids", expanding=True)))
_TAKE_NUMBER = (
    update(Cluster)
    .where(Cluster.c.id == bindparam("key_id"))
    .values(next_job=Cluster.c.next_job + 1)
    .returning(Cluster.c.next_job, Cluster.c.wanted)
)


@dataclass(frozen=True)
class HostAttempt:
    """An attempt of the job that holds a cluster's machines."""

    generation: int
    state: str
    terminating: bool
    running_at: float | None
    offer: Mapping[str, Any]
    ips: Mapping[int, str | None]  # by rank
    instance_ids: Mapping[int, str | None]

    @property
    def is_up(self) -> bool:
        """Its machines are set up, and nothing takes them away."""
        return self.state == AttemptState.RUNNING.value and not self.terminating

    def rooms(self) -> dict[int, NodeRoom]:
        """The nodes as they are when no job runs."""
        offer = self.offer
        count = int(offer["accelerators"][1]) if offer.get("accelerators") else 0
        room = NodeRoom(float(offer["vcpus"]), float(offer["memory_gib"]), (1.0,) * count)
        return dict.fromkeys(self.ips, room)


@dataclass(frozen=True)
class ClusterHost:
    """The newest job that holds a cluster's machines."""

    job_id: int
    status: str
    state: str
    reason: str
    outcome: str | None
    message: str
    has_run: bool
    num_nodes: int
    finalized: bool
    cancelled: bool
    submitted_at: float
    key: str  # of its submission: `host_key` of the start that it belongs to
    attempts: Sequence[HostAttempt] = field(default=())

    @property
    def running(self) -> HostAttempt | None:
        """The attempt whose machines may take jobs; None while there is none."""
        has_ended = self.cancelled or self.outcome is not None
        return None if has_ended else next((attempt for attempt in self.attempts if attempt.is_up), None)


def host_key(cluster_id: int, starts: int) -> str:
    """The key of the job that holds a cluster's machines since it was started for the `starts`th time."""
    return f"cluster{KEY_SEPARATOR}{cluster_id}{KEY_SEPARATOR}{starts}"


def insert_cluster(conn: Connection, columns: Mapping[str, Any]) -> int:
    """Insert a cluster and return its id. Raises IntegrityError if its name or its key is in use."""
    return int(conn.execute(insert(Cluster).values(**columns).returning(Cluster.c.id)).scalar_one())


def change(conn: Connection, cluster_id: int, **columns: Any) -> bool:
    """Set columns of a cluster, unless it is down. Returns whether it was not."""
    where = (Cluster.c.id == cluster_id, Cluster.c.wanted != DOWN)
    return conn.execute(update(Cluster).where(*where).values(**columns)).rowcount > 0


def take_down(conn: Connection, cluster_id: int, cause: str) -> bool:
    """End a cluster: its name is free, and its secrets are deleted. Returns False if it is down already."""
    return change(conn, cluster_id, wanted=DOWN, cause=cause, active_name=None, secrets=None)


def lock(conn: Connection, cluster_id: int) -> Row[Any] | None:
    """Keep other transactions from changing the cluster or its slots until this one ends. Returns its row."""
    query = update(Cluster).where(Cluster.c.id == cluster_id).values(id=Cluster.c.id)
    return conn.execute(query.returning(Cluster)).first()


def get(conn: Connection, cluster_id: int) -> Row[Any] | None:
    return conn.execute(select(Cluster).where(Cluster.c.id == cluster_id)).first()


def number_of(conn: Connection, job_id: int) -> int | None:
    """The number of a job on its cluster."""
    return conn.execute(select(Job.c.cluster_job).where(Job.c.id == job_id)).scalar()


def find(conn: Connection, name: str, *, gone: bool = False, user: str | None = None) -> Row[Any] | None:
    """The cluster `name`; with `gone`, or else the newest one of that name that is down. `user`: only that user's."""
    own = () if user is None else (Cluster.c.user == user,)
    active = conn.execute(select(Cluster).where(Cluster.c.active_name == name, *own)).first()
    if active is not None or not gone:
        return active
    named = select(Cluster).where(Cluster.c.name == name, *own)
    return conn.execute(named.order_by(Cluster.c.id.desc()).limit(1)).first()


def find_by_key(conn: Connection, key: str) -> Row[Any] | None:
    """The cluster that was launched with this idempotency key."""
    return conn.execute(select(Cluster).where(Cluster.c.idempotency_key == key)).first()


def with_job(conn: Connection, key: str) -> Row[Any] | None:
    """The cluster of the job that was accepted with this idempotency key."""
    query = select(Cluster).join(Job, Job.c.cluster_id == Cluster.c.id).where(Job.c.idempotency_key == key)
    return conn.execute(query).first()


def active(conn: Connection) -> list[Row[Any]]:
    """Every cluster that is not down, oldest first."""
    return list(conn.execute(select(Cluster).where(Cluster.c.active_name.is_not(None)).order_by(Cluster.c.id)))


def unsettled(conn: Connection) -> list[Row[Any]]:
    """Every cluster that is not down, and those that are down but have jobs that are not finalized."""
    with_jobs = select(Job.c.cluster_id).where(Job.c.cluster_id.is_not(None), Job.c.finalized.is_(False))
    ids = union(select(Cluster.c.id).where(Cluster.c.active_name.is_not(None)), with_jobs)
    return list(conn.execute(select(Cluster).where(Cluster.c.id.in_(ids)).order_by(Cluster.c.id)))


def stray_hosts(conn: Connection) -> list[int]:
    """The jobs that hold machines which their cluster does not want: it has others since, or wants none.

    Without those that end already.
    """
    query = select(
        Job.c.id, Job.c.idempotency_key, Cluster.c.id.label("cluster_id"), Cluster.c.wanted, Cluster.c.starts
    )
    query = query.join(Cluster, Cluster.c.id == Job.c.cluster_id).join(Task, Task.c.job_id == Job.c.id)
    query = query.where(IS_HOST, Job.c.finalized.is_(False), Job.c.cancel_at.is_(None), Task.c.outcome.is_(None))
    return [
        row.id
        for row in conn.execute(query)
        if row.wanted != UP or row.idempotency_key != host_key(row.cluster_id, row.starts)
    ]


def uncancelled_jobs(conn: Connection, cluster_id: int) -> list[int]:
    """The ids of the cluster's jobs that have neither ended nor been cancelled."""
    return list(conn.execute(_UNFINISHED.where(Job.c.cancel_at.is_(None)), {"of_cluster": cluster_id}).scalars())


def unfinalized(conn: Connection) -> list[Row[Any]]:
    """(job id, cluster id) of every job of a cluster that still needs work."""
    wanted = Job.c.cluster_id.is_not(None), Job.c.finalized.is_(False)
    return list(conn.execute(select(Job.c.id, Job.c.cluster_id).where(*wanted)))


def take_number(conn: Connection, cluster_id: int) -> tuple[int, str]:
    """The number of the cluster's next job, and what is wanted of the cluster until the transaction ends."""
    row = conn.execute(_TAKE_NUMBER, {"key_id": cluster_id}).one()
    return row.next_job - 1, row.wanted


def hosts(conn: Connection, cluster_ids: Collection[int]) -> dict[int, ClusterHost]:
    """The newest host of each of these clusters."""
    rows = list(conn.execute(_HOSTS, {"cluster_ids": list(cluster_ids)})) if cluster_ids else []
    attempts = _attempts(conn, [row.job_id for row in rows]) if rows else {}
    return {
        row.cluster_id: ClusterHost(
            row.job_id,
            row.status,
            row.state,
            row.reason,
            row.outcome,
            row.message,
            row.has_run,
            row.num_nodes,
            row.finalized,
            row.cancel_at is not None,
            row.submitted_at,
            row.idempotency_key or "",
            attempts.get(row.job_id, ()),
        )
        for row in rows
    }


def _attempts(conn: Connection, job_ids: Sequence[int]) -> dict[int, list[HostAttempt]]:
    nodes: dict[tuple[int, int], list[Any]] = {}
    for node in conn.execute(_NODES, {"job_ids": job_ids}):
        nodes.setdefault((node.job_id, node.generation), []).append(node)
    attempts: dict[int, list[HostAttempt]] = {}
    for row in conn.execute(_ATTEMPTS, {"job_ids": job_ids}):
        own = nodes.get((row.job_id, row.generation), ())
        attempt = HostAttempt(
            row.generation,
            row.state,
            row.terminating,
            row.running_at,
            row.offer,
            {node.rank: node.ip for node in own},
            {node.rank: node.instance_id for node in own},
        )
        attempts.setdefault(row.job_id, []).append(attempt)
    return attempts


def numbered_jobs(conn: Connection, cluster_id: int) -> dict[int, int]:
    """Number → job id, of every job of a cluster, in order."""
    return {row.cluster_job: row.id for row in conn.execute(_NUMBERED, {"of_cluster": cluster_id})}


def numbered_jobs_of(
    conn: Connection, cluster_ids: Collection[int], *, skip_finalized: bool = False
) -> dict[int, dict[int, int]]:
    """Cluster → (number → job id), of each of these clusters that has jobs."""
    query = select(Job.c.cluster_id, Job.c.cluster_job, Job.c.id).where(
        Job.c.cluster_id.in_(list(cluster_ids)), Job.c.cluster_job.is_not(None)
    )
    jobs: dict[int, dict[int, int]] = {}
    for row in conn.execute(query.where(Job.c.finalized.is_(False)) if skip_finalized else query):
        jobs.setdefault(row.cluster_id, {})[row.cluster_job] = row.id
    return jobs


def with_waiting_jobs(conn: Connection) -> set[int]:
    """The clusters whose queues have jobs without slots."""
    states = (TaskState.WAITING.value, TaskState.PROVISIONING.value)
    query = select(Job.c.cluster_id).distinct().join(Task, Task.c.job_id == Job.c.id)
    waits = (Job.c.cluster_job.is_not(None), Job.c.finalized.is_(False), Task.c.state.in_(states))
    return set(conn.execute(query.where(*waits)).scalars())


def unfinished_jobs(conn: Connection, cluster_id: int) -> list[int]:
    """The ids of the cluster's jobs that have not ended."""
    return list(conn.execute(_UNFINISHED, {"of_cluster": cluster_id}).scalars())


def running_jobs(conn: Connection, cluster_id: int) -> set[int]:
    """The ids of the cluster's jobs that have machines."""
    has_attempt = Task.c.state.in_((TaskState.PROVISIONING.value, TaskState.RUNNING.value))
    return set(conn.execute(_UNFINISHED.where(has_attempt), {"of_cluster": cluster_id}).scalars())


def last_job_submitted_at(conn: Connection, cluster_id: int) -> float | None:
    """When the newest job of a cluster was submitted; None if it has had none."""
    newest = _NUMBERED.with_only_columns(Job.c.submitted_at).order_by(None).order_by(Job.c.cluster_job.desc()).limit(1)
    return conn.execute(newest, {"of_cluster": cluster_id}).scalar()


def last_job_ended_at(conn: Connection, cluster_id: int) -> float | None:
    return conn.execute(_LAST_END, {"of_cluster": cluster_id}).scalar()


def ends_by(conn: Connection, job_ids: Collection[int], now: float, *, without_rule: bool = False) -> dict[int, float]:
    """When each of these jobs reaches its limit, as if those that do not run began now. Only of jobs that have one.

    `without_rule`: only of those that an earlier version accepted, whose own rules do not end them.
    """
    rows = conn.execute(_LIMITS, {"job_ids": list(job_ids)}) if job_ids else ()
    return {
        row.job_id: (now if row.run_since is None else row.run_since) + max(0.0, limit_s - row.run_seconds)
        for row in rows
        if (limit_s := (row.slot or {}).get("limit_s")) is not None
        and not (without_rule and "max_run_s" in row.recovery)
    }


def name_of(conn: Connection, cluster_id: int) -> str:
    return str(conn.execute(select(Cluster.c.name).where(Cluster.c.id == cluster_id)).scalar_one())


def waiting_jobs(conn: Connection, cluster_id: int) -> list[tuple[QueuedJob, bool]]:
    """The cluster's jobs without slots in the order of the queue, and whether each still waits to be granted some."""
    rows = conn.execute(_WAITING, {"of_cluster": cluster_id})
    return [(queued_job(row.id, row.num_nodes, row.slot), row.state == TaskState.WAITING.value) for row in rows]


def queued_job(job_id: int, num_nodes: int, slot: Mapping[str, Any]) -> QueuedJob:
    """The queue's view of a job, from `spec["slot"]` of its task."""
    demand = Demand(float(slot["cpus"]), float(slot["memory_gib"]), float(slot["gpus"]))
    return QueuedJob(job_id, demand, num_nodes, slot.get("limit_s"))


def held_by(conn: Connection, job_ids: Collection[int]) -> dict[int, str]:
    """Those of the jobs that hold the machines of a cluster, each with the cluster's name."""
    query = select(Job.c.id, Job.c.name).where(Job.c.id.in_(job_ids), IS_HOST)
    return {job_id: name for job_id, name in conn.execute(query)}
