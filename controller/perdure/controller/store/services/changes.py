"""Replicas that get another version on their machines: a decision is recorded, then the job's task is replaced.

The node receives the number of the revision (`maintenance.serve.changes`), and then requests the task.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, exists, select, update

from perdure.controller.store.records.jobs import Job, NewTask, Task
from perdure.controller.store.services import records
from perdure.controller.store.services.records import Replicas

REVISION = "revision"
"""Of a task's `spec`, as its node gets it."""


def carry_out(
    conn: Connection, service_id: int, number: int, *, version: int, revision: int, job_id: int, task: NewTask
) -> bool:
    """Make a replica one of `version`, which its node shall run as `revision`. False if its job has ended."""
    is_live = exists().where(Job.c.id == job_id, Job.c.finalized.is_(False))
    columns = {"spec": {**task.spec, REVISION: revision}, "secrets": task.secrets, "config": task.config}
    if not conn.execute(update(Task).where(Task.c.job_id == job_id, is_live).values(**columns)).rowcount:
        return False
    records.change_replica(
        conn,
        service_id,
        number,
        version=version,
        revision=revision,
        changes_to=None,
        changes_at=None,
        ready_at=None,
    )
    return True


def outrun(conn: Connection, service_id: int, number: int, *, job_id: int, revision: int) -> None:
    """Have the node of a replica run its task again as `revision`, which is above the one that it runs."""
    spec = conn.execute(select(Task.c.spec).where(Task.c.job_id == job_id)).scalar()
    if spec is not None:
        conn.execute(update(Task).where(Task.c.job_id == job_id).values(spec={**spec, REVISION: revision}))
        records.change_replica(conn, service_id, number, revision=revision, ready_at=None)


def wanted_revisions(conn: Connection, job_ids: Collection[int]) -> dict[int, int]:
    """The revisions that the nodes of these jobs shall run, without those that run what they were launched with."""
    query = select(Replicas.c.job_id, Replicas.c.revision).where(
        Replicas.c.job_id.in_(job_ids), Replicas.c.revision > 0, Replicas.c.ended_at.is_(None)
    )
    return {row.job_id: row.revision for row in conn.execute(query)}
