"""Where ports of clusters were opened to the internet. A row is recorded with the launch that opens them, before it.

What is recorded is closed once the cluster is down and has no machine any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, exists, or_, select

from perdure.controller.store.clusters.cluster_disks import Disk
from perdure.controller.store.engine.database import insert_into
from perdure.controller.store.records.clusters import DOWN, Cluster
from perdure.controller.store.records.jobs import Job
from perdure.controller.store.tables import ClusterPortsRow

Ports = ClusterPortsRow.__table__  # type: ignore[attr-defined]


def rule_name(controller: str, cluster_id: int) -> str:
    """The name of the rule that opens the ports of a cluster, in every region."""
    return f"perdure-{controller[:8].lower()}-cluster-{cluster_id}"


def ranges(ports: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """`["8080", "9000-9010"]` as pairs of the first and the last port."""
    pairs = (str(port).partition("-") for port in ports)
    return tuple((int(first), int(last or first)) for first, _, last in pairs)


def add(conn: Connection, cluster_id: int, cloud: str, region: str) -> None:
    """Record that ports of a cluster are about to be opened in a region. Repeating it changes nothing."""
    values = {"cluster_id": cluster_id, "cloud": cloud, "region": region}
    conn.execute(insert_into(conn, Ports).values(**values).on_conflict_do_nothing())


def unneeded(conn: Connection) -> list[Row[Any]]:
    """Where ports are open for clusters that are down, whose machines have ended."""
    has_machines = exists().where(Job.c.cluster_id == Ports.c.cluster_id, Job.c.cluster_job.is_(None), ~Job.c.finalized)
    has_disks = exists().where(Disk.c.cluster_id == Ports.c.cluster_id)
    query = select(Ports).outerjoin(Cluster, Cluster.c.id == Ports.c.cluster_id)
    is_down = or_(Cluster.c.id.is_(None), Cluster.c.wanted == DOWN)
    return list(conn.execute(query.where(is_down, ~has_machines, ~has_disks)))


def remove(conn: Connection, row: Row[Any]) -> None:
    """These ports are closed."""
    own = (Ports.c.cluster_id == row.cluster_id, Ports.c.cloud == row.cloud, Ports.c.region == row.region)
    conn.execute(delete(Ports).where(*own))
