"""Routes for schedules: jobs that are launched again and again. `submit.schedules` does what they ask."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field
from sqlalchemy import Row

from perdure.controller.api.auth import Operator
from perdure.controller.api.context import ApiContext
from perdure.controller.api.routes.jobs import Key, RequestBody
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.store import job_schedules
from perdure.controller.store.queries.job_listing import iso
from perdure.controller.submit.schedules import Missed, NewSchedule, ScheduleService
from perdure.sdk import schedules as types

router = APIRouter(prefix="/api/v1/schedules", tags=["schedules"], responses=error_responses(400, 401, 503))

_MAX_TASKS = 1_000
Name = Annotated[str, Path(min_length=1, max_length=200, description="the schedule's name, which its jobs have")]


class ScheduleBody(RequestBody):
    cron: str = Field(min_length=1, max_length=200)
    time_zone: str = Field("UTC", max_length=100)
    tasks: list[dict[str, Any]] = Field(min_length=1, max_length=_MAX_TASKS)
    user: str = Field("", max_length=200)
    missed: Missed = "once"
    overlaps: bool = False


class RunScheduleBody(RequestBody):
    key: Key = Field(min_length=1)


@router.get("", responses=json_response(types.ScheduleList))
def list_schedules(caller: Operator) -> dict[str, Any]:
    """The schedules, by name."""
    with caller.context.database.connect() as conn:
        return {"schedules": [_schedule(row) for row in job_schedules.list_all(conn)]}


@router.put("/{name}", responses=json_response(types.SavedSchedule))
def save_schedule(caller: Operator, name: Name, body: ScheduleBody) -> dict[str, Any]:
    """Create a schedule, or replace the one of that name. It is not paused.

    `cron`: five fields. `missed`: whether one of the runs that were due while no controller worked is made up for.
    `overlaps`: whether a run begins although the job of the one before has not ended.
    """
    new = NewSchedule(name, body.cron, body.time_zone, body.tasks, body.user, body.missed, body.overlaps)
    warnings = _service(caller.context).save(new)
    return {"schedule": _schedule(_service(caller.context).find(name)), "warnings": list(warnings)}


@router.delete("/{name}", responses=json_response(types.ScheduleList) | error_responses(404))
def remove_schedule(caller: Operator, name: Name) -> dict[str, Any]:
    """Remove a schedule. Its jobs go on. Returns those that are left."""
    _service(caller.context).remove(name)
    return list_schedules(caller)


@router.post("/{name}/pause", responses=json_response(types.Schedule) | error_responses(404))
def pause_schedule(caller: Operator, name: Name) -> dict[str, Any]:
    """Launch nothing until it is resumed."""
    _service(caller.context).pause(name)
    return _schedule(_service(caller.context).find(name))


@router.post("/{name}/resume", responses=json_response(types.Schedule) | error_responses(404))
def resume_schedule(caller: Operator, name: Name) -> dict[str, Any]:
    """Launch again, from now on."""
    _service(caller.context).resume(name)
    return _schedule(_service(caller.context).find(name))


@router.post("/{name}/run", responses=json_response(types.ScheduledRun) | error_responses(404, 429))
def run_schedule(caller: Operator, name: Name, body: RunScheduleBody) -> dict[str, Any]:
    """Launch a job of the schedule now. Repeating it with the same `key` returns the same job."""
    return {"job_id": _service(caller.context).run_now(name, body.key).job_id}


def _service(context: ApiContext) -> ScheduleService:
    assert context.schedules is not None
    return context.schedules


def _schedule(row: Row[Any]) -> dict[str, Any]:
    return {
        "name": row.name,
        "user": row.user,
        "cron": row.cron,
        "time_zone": row.time_zone,
        "missed": row.missed,
        "overlaps": row.overlaps,
        "paused": row.paused,
        "created_at": iso(row.created_at),
        "next_at": None if row.paused or row.next_at is None else iso(row.next_at),
        "last_due_at": None if row.last_due_at is None else iso(row.last_due_at),
        "last_job_id": row.last_job_id,
        "last_result": row.last_result,
    }
