"""The machines whose disks clusters keep while they are stopped, one for each rank.

A row exists from the first stop of the machines until they are gone: while it does, each start of the cluster runs
these machines again. The rows of a cluster that is down name what is to be deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, exists, or_, select, update

from perdure.controller.store.clusters import home_rescues
from perdure.controller.store.engine.database import insert_into
from perdure.controller.store.records.clusters import DOWN, IS_HOST, Cluster
from perdure.controller.store.records.intents import IntentKind, Intents
from perdure.controller.store.records.jobs import Job
from perdure.controller.store.tables import ClusterDiskRow

Disk = ClusterDiskRow.__table__  # type: ignore[attr-defined]

SINCE_REVISION = "0013"  # of the schema. The sweep of a controller of an older one ends every stopped machine.

_HOSTS = select(Job.c.id, Job.c.cluster_id, Cluster.c.wanted).join(Cluster, Cluster.c.id == Job.c.cluster_id)
_HOSTS = _HOSTS.where(Job.c.id.in_(bindparam("job_ids", expanding=True)), IS_HOST)
_LAUNCHES = select(Intents.c.generation, Intents.c.request).where(
    Intents.c.job_id == bindparam("of_job"), Intents.c.kind == IntentKind.LAUNCH.value
)


@dataclass(frozen=True)
class KeptDisks:
    """Machines that have been stopped: their ids by rank, and what the disk of each costs while they are."""

    instance_ids: tuple[str, ...]
    offer: Mapping[str, Any]
    price_per_hour: float
    lost: frozenset[str] = frozenset()  # those of them that are gone, and their disks


@dataclass(frozen=True)
class DisksInUse:
    """The machines were started again."""


@dataclass(frozen=True)
class StopRefused:
    """The cloud does not stop the machines of an attempt. They will be ended, once their homes are saved."""

    job_id: int
    generation: int
    num_nodes: int


@dataclass(frozen=True)
class DisksLost:
    """The machines are gone, and their disks."""


DiskChange = KeptDisks | DisksInUse | StopRefused | DisksLost


def record(conn: Connection, cluster_id: int, change: DiskChange, now: float) -> None:
    """Record what has become of the disks of a cluster. Repeating it changes nothing."""
    of_cluster = Disk.c.cluster_id == cluster_id
    match change:
        case DisksLost():
            conn.execute(delete(Disk).where(of_cluster))
            home_rescues.end(conn, cluster_id)
        case StopRefused():
            home_rescues.begin(conn, cluster_id, change.job_id, change.generation, change.num_nodes, now)
        case DisksInUse():
            for row in of_clusters(conn, [cluster_id]).get(cluster_id, ()):
                spent = {"spent_usd": cost_of(row, now), "stopped_at": None}
                conn.execute(update(Disk).where(of_cluster, Disk.c.rank == row.rank).values(**spent))
        case KeptDisks():
            known = {row.instance_id: cost_of(row, now) for row in of_clusters(conn, [cluster_id]).get(cluster_id, ())}
            conn.execute(delete(Disk).where(of_cluster))
            values = [
                {
                    "cluster_id": cluster_id,
                    "rank": rank,
                    "instance_id": id,
                    "offer": dict(change.offer),
                    "price_per_hour": change.price_per_hour,
                    "stopped_at": None if id in change.lost else now,
                    "spent_usd": known.get(id, 0.0),
                }
                for rank, id in enumerate(change.instance_ids)
            ]
            conn.execute(insert_into(conn, Disk), values)
            home_rescues.end(conn, cluster_id)


def of_clusters(conn: Connection, cluster_ids: Collection[int]) -> dict[int, list[Row[Any]]]:
    """The machines of those of the clusters that keep some, by rank."""
    rows: dict[int, list[Row[Any]]] = {}
    if cluster_ids:
        query = select(Disk).where(Disk.c.cluster_id.in_(list(cluster_ids)))
        for row in conn.execute(query.order_by(Disk.c.cluster_id, Disk.c.rank)):
            rows.setdefault(row.cluster_id, []).append(row)
    return rows


def cost_of(row: Row[Any], now: float) -> float:
    """USD that a disk has cost while its machine was stopped."""
    stopped_s = 0.0 if row.stopped_at is None else max(0.0, now - row.stopped_at)
    return float(row.spent_usd + row.price_per_hour * stopped_s / 3600)


def hosts(conn: Connection, job_ids: Collection[int]) -> dict[int, Row[Any]]:
    """(id, cluster_id, wanted) of those of the jobs that hold the machines of clusters."""
    return {row.id: row for row in conn.execute(_HOSTS, {"job_ids": list(job_ids)})} if job_ids else {}


def launch_request(conn: Connection, job_id: int, generation: int) -> Mapping[str, Any]:
    """What was requested with the launch of an attempt of a job with one task; empty if it was not."""
    rows = conn.execute(_LAUNCHES, {"of_job": job_id})
    return next((row.request for row in rows if row.generation == generation), {})


def keeps_disks(conn: Connection, job_id: int, generation: int) -> bool:
    """Whether the machines of an attempt are stopped at its end, and nothing of them is saved elsewhere."""
    return bool(launch_request(conn, job_id, generation).get("keeps_disks"))


def is_ending(conn: Connection, cluster_id: int, host_key: str) -> bool:
    """Whether machines of an earlier start are being stopped, so that their disks are not known yet.

    `host_key`: that of the present start.
    """
    query = select(Job.c.id).where(
        Job.c.cluster_id == cluster_id, IS_HOST, Job.c.finalized.is_(False), Job.c.idempotency_key != host_key
    )
    launches = (row.request for id in conn.execute(query).scalars() for row in conn.execute(_LAUNCHES, {"of_job": id}))
    return any(request.get("keeps_disks") for request in launches)


def kept(conn: Connection) -> set[tuple[str, str]]:
    """(cloud, instance id) of every machine whose disk a cluster keeps that is not down."""
    query = select(Disk.c.offer, Disk.c.instance_id).join(Cluster, Cluster.c.id == Disk.c.cluster_id)
    return {(row.offer["cloud"], row.instance_id) for row in conn.execute(query.where(Cluster.c.wanted != DOWN))}


def unneeded(conn: Connection) -> list[Row[Any]]:
    """The machines of clusters that are down, once the job that held them has ended them in order."""
    has_machines = exists().where(Job.c.cluster_id == Disk.c.cluster_id, Job.c.cluster_job.is_(None), ~Job.c.finalized)
    query = select(Disk).outerjoin(Cluster, Cluster.c.id == Disk.c.cluster_id)
    return list(conn.execute(query.where(or_(Cluster.c.id.is_(None), Cluster.c.wanted == DOWN), ~has_machines)))


def forget(conn: Connection, rows: Sequence[Row[Any]]) -> None:
    """These machines are gone."""
    for row in rows:
        conn.execute(delete(Disk).where(Disk.c.cluster_id == row.cluster_id, Disk.c.rank == row.rank))
