"""Reads and writes where the homes of clusters are kept while they are stopped."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Row, exists, insert, select, update

from perdure.controller.store.records.clusters import DOWN, IS_HOST, UP, Cluster
from perdure.controller.store.records.jobs import Attempt, Job, Task
from perdure.controller.store.tables import ClusterHomeRow, HomeRescueRow
from perdure.recovery.statuses import AttemptState

Home = ClusterHomeRow.__table__  # type: ignore[attr-defined]
Rescue = HomeRescueRow.__table__  # type: ignore[attr-defined]

_OF_HOST = (
    select(Home, Cluster.c.wanted)
    .join(Cluster, Cluster.c.id == Home.c.cluster_id)
    .where(Home.c.is_ready, Home.c.removed_at.is_(None))
)


def add(conn: Connection, cluster_id: int, store: str, bucket: str, now: float) -> None:
    """Record the bucket before it is created. Raises IntegrityError if the cluster has one."""
    conn.execute(
        insert(Home).values(cluster_id=cluster_id, store=store, bucket=bucket, tried_at=now, is_ready=False, problem="")
    )


def change(conn: Connection, cluster_id: int, **columns: Any) -> None:
    conn.execute(update(Home).where(Home.c.cluster_id == cluster_id).values(**columns))


def of_clusters(conn: Connection, cluster_ids: Collection[int]) -> dict[int, Row[Any]]:
    """The homes of those of the clusters that have one which is not removed."""
    query = select(Home).where(Home.c.cluster_id.in_(list(cluster_ids)), Home.c.removed_at.is_(None))
    return {row.cluster_id: row for row in conn.execute(query)} if cluster_ids else {}


def wanted_of(conn: Connection, cluster_id: int) -> Row[Any] | None:
    """The home of a cluster if its bucket is there and the cluster needs it: it is not down."""
    return conn.execute(_OF_HOST.where(Home.c.cluster_id == cluster_id, Cluster.c.wanted != DOWN)).first()


def has_cached_mounts(conn: Connection, cluster_id: int) -> bool:
    """Whether the machines of a cluster have writes to buckets in a cache, which they upload before they end."""
    specs = select(Task.c.spec).join(Job, Job.c.id == Task.c.job_id).where(Job.c.cluster_id == cluster_id, IS_HOST)
    spec = conn.execute(specs.order_by(Job.c.id.desc()).limit(1)).scalar()
    return any(mount["mode"] == "MOUNT_CACHED" for mount in (spec or {}).get("mounts", ()))


def missing(conn: Connection, tried_before: float) -> list[Row[Any]]:
    """(cluster_id, cloud, job_id, generation) of the clusters with machines and without the bucket.

    Not of those that failed since then.
    """
    has_failed = (Home.c.problem != "") & (Home.c.tried_at >= tried_before)
    is_recent = exists().where(Home.c.cluster_id == Cluster.c.id, Home.c.is_ready | has_failed)
    query = (
        select(Cluster.c.id.label("cluster_id"), Attempt.c.offer["cloud"].as_string().label("cloud"))
        .add_columns(Attempt.c.job_id, Attempt.c.generation)
        .join(Job, Job.c.cluster_id == Cluster.c.id)
        .join(Attempt, Attempt.c.job_id == Job.c.id)
        .where(Cluster.c.wanted == UP, IS_HOST, Attempt.c.state != AttemptState.GONE.value, ~is_recent)
        .order_by(Attempt.c.job_id, Attempt.c.generation)
    )
    return list({row.cluster_id: row for row in conn.execute(query)}.values())


def missing_for_rescues(conn: Connection, tried_before: float) -> list[Row[Any]]:
    """(cluster_id, cloud) of the clusters whose machines must save their homes, without the bucket; as `missing`."""
    has_failed = (Home.c.problem != "") & (Home.c.tried_at >= tried_before)
    is_recent = exists().where(Home.c.cluster_id == Cluster.c.id, Home.c.is_ready | has_failed)
    of_attempt = (Attempt.c.job_id == Rescue.c.job_id) & (Attempt.c.generation == Rescue.c.generation)
    query = (
        select(Cluster.c.id.label("cluster_id"), Attempt.c.offer["cloud"].as_string().label("cloud"))
        .join(Rescue, Rescue.c.cluster_id == Cluster.c.id)
        .join(Attempt, of_attempt)
        .where(Cluster.c.wanted != DOWN, Attempt.c.state != AttemptState.GONE.value, ~is_recent)
    )
    return list({row.cluster_id: row for row in conn.execute(query)}.values())


def unneeded(conn: Connection) -> list[Row[Any]]:
    """The homes of clusters that are down, whose machines have ended."""
    has_machines = exists().where(Job.c.cluster_id == Home.c.cluster_id, Job.c.cluster_job.is_(None), ~Job.c.finalized)
    query = select(Home).join(Cluster, Cluster.c.id == Home.c.cluster_id)
    return list(conn.execute(query.where(Cluster.c.wanted == DOWN, Home.c.removed_at.is_(None), ~has_machines)))
