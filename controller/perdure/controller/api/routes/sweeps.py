"""Routes for sweeps: jobs that were launched together. `submit.sweeps` does what they ask."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from fastapi import APIRouter, Path
from pydantic import Field

from perdure.controller.api.access.audit_log import record
from perdure.controller.api.auth import Reader, Runner
from perdure.controller.api.context import ApiContext
from perdure.controller.api.routes.jobs import Key, RequestBody
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.submit.sweeps import SweepService, no_such_sweep

router = APIRouter(prefix="/api/v1/sweeps", tags=["sweeps"], responses=error_responses(400, 401, 404, 503))

SweepId = Annotated[int, Path(ge=0, le=2**31 - 1, description="the id of the sweep's first job")]


class SweepJob(TypedDict):
    """The newest job of one rank of a sweep."""

    rank: int  # SKYPILOT_JOB_RANK
    job_id: int
    status: str
    values: dict[str, str]  # of the variables of the grid
    message: str


class JobSweep(TypedDict):
    """Jobs that were launched together."""

    sweep_id: int
    name: str
    user: str
    size: int
    counts: dict[str, int]  # how many of its ranks have which status
    cost_usd: float  # of all jobs, those that were tried again included
    jobs: list[SweepJob]  # by rank


class RetriedSweep(TypedDict):
    job_ids: list[int]


class RetryBody(RequestBody):
    key: Key = Field(min_length=1)


@router.get("/{sweep_id}", responses=json_response(JobSweep))
def show_sweep(caller: Reader, sweep_id: SweepId) -> dict[str, Any]:
    """A sweep with the newest job of each rank."""
    return _service(caller.context).describe(sweep_id, caller.sees)


@router.post("/{sweep_id}/retry", responses=json_response(RetriedSweep) | error_responses(409, 429))
def retry_sweep(caller: Runner, sweep_id: SweepId, body: RetryBody) -> dict[str, Any]:
    """Launch the ranks whose newest job has failed again, as jobs of the sweep. Once for each `key`."""
    service = _service(caller.context)
    if not service.exists(sweep_id, caller.changes):
        caller.context.access.deny(caller.actor, "sweep.retry", f"sweep {sweep_id}", "no sweep of this user")
        raise no_such_sweep(sweep_id)
    record(caller, "sweep.retry", f"sweep {sweep_id}")
    return {"job_ids": list(service.retry(sweep_id, caller.requester(), caller.key_for(body.key) or ""))}


def _service(context: ApiContext) -> SweepService:
    return SweepService(context.database, context.clock, context.cluster_service.accept)
