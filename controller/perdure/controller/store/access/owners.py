"""What belongs to whom: the user of a job, and the users who have sent an upload."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, delete, select

from perdure.controller.store.engine.database import insert_into
from perdure.controller.store.records.jobs import Job
from perdure.controller.store.tables import UploadOwnerRow

UploadOwners = UploadOwnerRow.__table__  # type: ignore[attr-defined]


def job_owners(conn: Connection, job_ids: Collection[int]) -> dict[int, str]:
    """Job id → its user, of those of the jobs that exist."""
    rows = conn.execute(select(Job.c.id, Job.c.user).where(Job.c.id.in_(job_ids))) if job_ids else ()
    return {row.id: row.user for row in rows}


def owned_jobs(conn: Connection, job_ids: Collection[int], user: str) -> set[int]:
    """Those of the jobs that are the user's."""
    return {job_id for job_id, owner in job_owners(conn, job_ids).items() if owner == user}


def owned_uploads(conn: Connection, digests: Collection[str], user: str) -> set[str]:
    """Those of the uploads that the user has sent."""
    if not digests:
        return set()
    own = UploadOwners.c.digest.in_(digests), UploadOwners.c.user == user
    return set(conn.execute(select(UploadOwners.c.digest).where(*own)).scalars())


def add_upload(conn: Connection, digest: str, user: str) -> None:
    """Record that the user has sent the upload."""
    conn.execute(insert_into(conn, UploadOwners).values(digest=digest, user=user).on_conflict_do_nothing())


def forget_upload(conn: Connection, digest: str) -> None:
    """The upload was deleted."""
    conn.execute(delete(UploadOwners).where(UploadOwners.c.digest == digest))
