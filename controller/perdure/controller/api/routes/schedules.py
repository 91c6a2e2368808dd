"""Routes for schedules: jobs that are launched again and again. `submit.schedules` does what they ask."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field
from sqlalchemy import Row

from perdure.controller.api.access.audit_log import record
from perdure.controller.api.access.permissions import Caller
from perdure.controller.api.auth import Reader, Runner
from perdure.controller.api.context import ApiContext
from perdure.controller.api.routes.jobs import Key, RequestBody
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.store import job_schedules
from perdure.controller.store.queries.job_listing import iso
from perdure.controller.submit.schedules import Missed, NewSchedule, ScheduleService, no_such_schedule
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
def list_schedules(caller: Reader) -> dict[str, Any]:
    """The schedules that the caller may see, by name."""
    with caller.context.database.connect() as conn:
        rows = job_schedules.list_all(conn)
    return {"schedules": [_schedule(row) for row in rows if caller.sees in (None, row.user)]}


@router.put("/{name}", responses=json_response(types.SavedSchedule) | error_responses(403, 409))
def save_schedule(caller: Runner, name: Name, body: ScheduleBody) -> dict[str, Any]:
    """Create a schedule, or replace the one of that name. It is not paused.

    `cron`: five fields. `missed`: whether one of the runs that were due while no controller worked is made up for.
    `overlaps`: whether a run begins although the job of the one before has not ended. A named user's `user` is that of
    the token; 409: the name is another user's.
    """
    new = NewSchedule(name, body.cron, body.time_zone, body.tasks, body.missed, body.overlaps)
    record(caller, "schedule.save", f"schedule {name}", cron=body.cron)
    warnings = _service(caller.context).save(new, caller.requester(body.user))
    return {"schedule": _schedule(_service(caller.context).find(name)), "warnings": list(warnings)}


@router.delete("/{name}", responses=json_response(types.ScheduleList) | error_responses(404))
def remove_schedule(caller: Runner, name: Name) -> dict[str, Any]:
    """Remove a schedule. Its jobs go on. Returns those that are left."""
    _record(caller, "schedule.remove", name)
    _service(caller.context).remove(name, caller.changes)
    return list_schedules(caller)


@router.post("/{name}/pause", responses=json_response(types.Schedule) | error_responses(404))
def pause_schedule(caller: Runner, name: Name) -> dict[str, Any]:
    """Launch nothing until it is resumed."""
    _record(caller, "schedule.pause", name)
    _service(caller.context).pause(name, caller.changes)
    return _schedule(_service(caller.context).find(name))


@router.post("/{name}/resume", responses=json_response(types.Schedule) | error_responses(404))
def resume_schedule(caller: Runner, name: Name) -> dict[str, Any]:
    """Launch again, from now on."""
    _record(caller, "schedule.resume", name)
    _service(caller.context).resume(name, caller.changes)
    return _schedule(_service(caller.context).find(name))


@router.post("/{name}/run", responses=json_response(types.ScheduledRun) | error_responses(404, 429))
def run_schedule(caller: Runner, name: Name, body: RunScheduleBody) -> dict[str, Any]:
    """Launch a job of the schedule now. Repeating it with the same `key` returns the same job."""
    _record(caller, "schedule.run", name)
    key = caller.key_for(body.key) or ""
    return {"job_id": _service(caller.context).run_now(name, caller.requester(), key).job_id}


def _service(context: ApiContext) -> ScheduleService:
    assert context.schedules is not None
    return context.schedules


def _record(caller: Caller, action: str, name: str) -> None:
    """Record in the audit log what the caller is about to do with a schedule of theirs.

    Raises RequestRejected (404).
    """
    with caller.context.database.connect() as conn:
        row = job_schedules.find(conn, name, caller.changes)
    if row is None:
        caller.context.access.deny(caller.actor, action, f"schedule {name}", "no schedule of this user")
        raise no_such_schedule(name)
    record(caller, action, f"schedule {name}")


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
