"""What keeps clusters from being idle, and when something last did: what autostop goes by.

A rule other than the default is a fact, `cluster_wait_for.<id of the cluster>`: `jobs`, or `jobs 0.05` with a floor.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, select, update

from perdure.controller.store.records import facts
from perdure.controller.store.records.clusters import UP, Cluster
from perdure.controller.store.records.jobs import Job

_FACTS = "cluster_wait_for."


class WaitFor(StrEnum):
    """What autostop waits for before it counts idle seconds. The values are SkyPilot's."""

    JOBS_AND_SSH = "jobs_and_ssh"
    JOBS = "jobs"
    NONE = "none"


@dataclass(frozen=True)
class IdleRule:
    """When a cluster is idle. `below`: a share of 1; jobs count only while a machine uses that much of its CPUs or of a
    GPU. None: always."""

    wait_for: WaitFor = WaitFor.JOBS_AND_SSH
    below: float | None = None

    @classmethod
    def parse(cls, text: str) -> IdleRule:
        wait_for, _, below = text.partition(" ")
        return cls(WaitFor(wait_for), float(below) if below else None)

    def __str__(self) -> str:
        return str(self.wait_for) if self.below is None else f"{self.wait_for} {self.below!r}"


def get(conn: Connection, cluster_id: int) -> IdleRule:
    """The rule of a cluster."""
    return of_clusters(conn, [cluster_id])[cluster_id]


def of_clusters(conn: Connection, cluster_ids: Collection[int]) -> dict[int, IdleRule]:
    """The rule of each of these clusters."""
    known = facts.get_all(conn, [f"{_FACTS}{id}" for id in cluster_ids])
    texts = {id: known.get(f"{_FACTS}{id}") for id in cluster_ids}
    return {id: IdleRule() if text is None else IdleRule.parse(text) for id, text in texts.items()}


def store(conn: Connection, cluster_id: int, rule: IdleRule) -> None:
    """Store the rule of a cluster. The default leaves nothing in the facts."""
    name = f"{_FACTS}{cluster_id}"
    if rule == IdleRule():
        facts.remove(conn, name)
    else:
        facts.set(conn, name, str(rule))


def floors(conn: Connection) -> dict[int, float]:
    """Cluster → its floor, of those that have one."""
    rules = {int(name.removeprefix(_FACTS)): IdleRule.parse(text) for name, text in _stored(conn).items()}
    return {id: rule.below for id, rule in rules.items() if rule.below is not None}


def _stored(conn: Connection) -> dict[str, str]:
    return facts.with_prefix(conn, _FACTS)


def record_session(conn: Connection, job_id: int, at: float) -> None:
    """A user has used the machines of this job through a stream, `at` (epoch seconds). Autostop counts from there."""
    row = conn.execute(
        select(Cluster.c.id)
        .join(Job, Job.c.cluster_id == Cluster.c.id)
        .where(Job.c.id == job_id, Job.c.cluster_job.is_(None), Cluster.c.autostop_s.is_not(None))
    ).first()
    if row is not None and get(conn, row.id).wait_for is WaitFor.JOBS_AND_SSH:
        record_use(conn, row.id, at)


def record_use(conn: Connection, cluster_id: int, at: float) -> None:
    """Something has used a cluster, `at` (epoch seconds). Autostop counts from there."""
    is_newer = (Cluster.c.id == cluster_id, Cluster.c.wanted == UP, Cluster.c.active_at < at)
    conn.execute(update(Cluster).where(*is_newer).values(active_at=at))


def of_host(conn: Connection, job_id: int) -> dict[str, Any]:
    """When the cluster of a host is stopped, as the host gets it: `autostop_s`, `wait_for` and `active_at`.

    `active_at` is there only if nothing is waited for: from each new value, the host counts anew. A floor is left to
    the controllers: without them, a job counts whatever it uses.
    """
    of_cluster = select(Cluster.c.id, Cluster.c.autostop_s, Cluster.c.active_at)
    row = conn.execute(of_cluster.join(Job, Job.c.cluster_id == Cluster.c.id).where(Job.c.id == job_id)).first()
    if row is None or row.autostop_s is None:
        return {"autostop_s": None}
    waits = get(conn, row.id).wait_for
    setting = {"autostop_s": row.autostop_s, "wait_for": str(waits)}
    return setting | ({"active_at": row.active_at} if waits is WaitFor.NONE else {})
