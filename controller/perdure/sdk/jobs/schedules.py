"""Schedules: jobs that the controller launches again and again.

    from perdure.sdk import Task, schedules

    schedules.save("nightly", "0 3 * * *", Task.from_yaml("train.yaml"), time_zone="Europe/Berlin")

Every function takes `client` and raises as in `jobs`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal, TypedDict
from urllib.parse import quote

from perdure.sdk import jobs
from perdure.sdk.connection import discovery
from perdure.sdk.connection.client import Client, user_name

if TYPE_CHECKING:
    from perdure.sdk.dag import Dag
    from perdure.sdk.task import Task


class Schedule(TypedDict):
    """A schedule. A time is ISO 8601 in UTC."""

    name: str  # of its jobs as well
    user: str
    cron: str
    time_zone: str
    missed: str  # once or skip: what happens to runs that were due while no controller worked
    overlaps: bool  # whether a run begins although the job of the one before has not ended
    paused: bool
    created_at: str
    next_at: str | None  # None: it is paused, or never due
    last_due_at: str | None
    last_job_id: int | None
    last_result: str  # why the last run that was due launched no job; empty if it did


class ScheduleList(TypedDict):
    schedules: list[Schedule]


class SavedSchedule(TypedDict):
    schedule: Schedule
    warnings: list[str]


class ScheduledRun(TypedDict):
    job_id: int


def save(
    name: str,
    cron: str,
    task_or_dag: Task | Dag,
    *,
    time_zone: str = "UTC",
    missed: Literal["once", "skip"] = "once",
    overlaps: bool = False,
    ignore: Collection[str] = (),
    client: Client | None = None,
) -> SavedSchedule:
    """Create a schedule, or replace the one of that name. Local files are uploaded now, and used by every run.

    `cron`: minute, hour, day of the month, month, day of the week. `missed`: one run of those that were due while no
    controller worked is made up for ("once"), or none ("skip"). `overlaps`: begin a run although the job of the one
    before has not ended; otherwise that run is left out.
    """
    from perdure.sdk.files.uploads import no_progress

    client = client or _client()
    with jobs.prepare(task_or_dag, name, ignore=ignore) as prepared:
        prepared.send(client, on_message=lambda _: None, progress=no_progress)
        body = {"cron": cron, "time_zone": time_zone, "missed": missed, "overlaps": overlaps, "user": user_name()}
        saved = client.call(SavedSchedule, "PUT", _path(name), body={**body, "tasks": prepared.packed.tasks})
        return {**saved, "warnings": list(dict.fromkeys((*prepared.warnings, *saved["warnings"])))}


def list_all(*, client: Client | None = None) -> list[Schedule]:
    """The schedules, by name."""
    return (client or _client()).call(ScheduleList, "GET", "/schedules")["schedules"]


def pause(name: str, *, client: Client | None = None) -> Schedule:
    """Launch nothing until `resume`."""
    return (client or _client()).call(Schedule, "POST", _path(name, "/pause"), body={})


def resume(name: str, *, client: Client | None = None) -> Schedule:
    """Launch again, from now on: nothing that was due meanwhile."""
    return (client or _client()).call(Schedule, "POST", _path(name, "/resume"), body={})


def run(name: str, *, client: Client | None = None) -> int:
    """Launch a job of the schedule now. Returns its id."""
    body = {"key": jobs.new_key()}
    return (client or _client()).call(ScheduledRun, "POST", _path(name, "/run"), body=body)["job_id"]


def remove(name: str, *, client: Client | None = None) -> None:
    """Remove a schedule. Its jobs go on."""
    (client or _client()).call(ScheduleList, "DELETE", _path(name))


def _path(name: str, action: str = "") -> str:
    return f"/schedules/{quote(name, safe='')}{action}"


def _client() -> Client:
    return Client(discovery.ensure())
