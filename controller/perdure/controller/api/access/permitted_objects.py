"""Things that a path names: the caller gets those that they may see or change, and 404 for all others, as for things
that do not exist."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path
from fastapi.concurrency import run_in_threadpool

from perdure.controller.api.access.permissions import Caller
from perdure.controller.api.auth import require_user
from perdure.controller.store.access import owners
from perdure.controller.submit.errors import RequestRejected

# The highest id that the database can hold. Ids begin at 1.
MAX_ID = 2**63 - 1
JobId = Annotated[int, Path(ge=0, le=MAX_ID, description="the job's id")]
_User = Annotated[Caller, Depends(require_user)]


async def visible_job(caller: _User, job_id: JobId) -> int:
    """The id of a job, which the caller may see if it exists. Raises RequestRejected (404)."""
    await run_in_threadpool(require_job, caller, job_id, caller.sees)
    return job_id


async def changeable_job(caller: _User, job_id: JobId) -> int:
    """The id of a job, which the caller may change if it exists. Raises RequestRejected (404)."""
    await run_in_threadpool(require_job, caller, job_id, caller.changes)
    return job_id


def require_job(caller: Caller, job_id: int, of: str | None) -> None:
    """Raises RequestRejected (404) unless the job is the user's (None: any job)."""
    if of is None:
        return
    with caller.context.database.connect() as conn:
        owner = owners.job_owners(conn, [job_id]).get(job_id)
    if owner != of:
        if owner is not None:
            caller.context.access.deny(caller.actor, "job.access", f"job {job_id}", "another user's job")
        raise no_such_job(job_id)


def no_such_job(job_id: int) -> RequestRejected:
    return RequestRejected(f"there is no job {job_id}", where="job_id", fix="see `perdure jobs queue -a`", status=404)


VisibleJob = Annotated[int, Depends(visible_job)]
ChangeableJob = Annotated[int, Depends(changeable_job)]
