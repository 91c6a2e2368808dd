"""Routes about jobs: plan, launch, queue, show, cancel, preempt."""

from __future__ import annotations

from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from perdure.controller import mail
from perdure.controller.api.auth import User
from perdure.controller.api.schemas import answer, refusals
from perdure.controller.clouds.base import Interruptible
from perdure.controller.crashpoints import reach
from perdure.controller.refusing import Refused
from perdure.controller.services import Services
from perdure.controller.store import globs, jobs, queries, search
from perdure.controller.store.database import UNAVAILABLE
from perdure.controller.store.globs import BadGlob, Glob
from perdure.controller.store.search import Filter
from perdure.controller.submission import Submission
from perdure.controller.turns import Turn
from perdure.recovery import events
from perdure.recovery.actions import Note
from perdure.recovery.job import AttemptView
from perdure.recovery.statuses import AttemptState, Status
from perdure.sdk import records
from perdure.sdk.problems import shown

router = APIRouter(prefix="/api/v1", tags=["jobs"], responses=refusals(400, 401, 503))

# What the database can hold as an id. Ids begin at 1; there is no job beyond.
_HIGHEST_ID = 2**63 - 1
_ID_DIGITS = len(str(_HIGHEST_ID))
JobId = Annotated[int, Path(ge=0, le=_HIGHEST_ID, description="the job's id")]
ListedId = Annotated[int, Field(ge=0, le=_HIGHEST_ID)]
_MAY_LAUNCH = (Status.STARTING, Status.RECOVERING)
_TOLD = ("job_id", "job_ids", "name", "task_ids", "warnings")
_MOST_TASKS, _MOST_IDS = 1_000, 10_000

# So long, and for so many jobs, a cancel waits to be seen in the queue once it is safe.
_SHOWN_WITHIN_S = 2.0
_FEW = 50


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Job(Body):
    name: str | None = Field(None, max_length=200)
    tasks: list[dict[str, Any]] = Field(max_length=_MOST_TASKS)
    user: str = Field("", max_length=200)
    key: str | None = Field(None, max_length=200)


class Launch(Job):
    num_jobs: int = Field(1, ge=1, le=_MOST_IDS)


def submission(body: Launch) -> Submission:
    """What a launch asks for."""
    return Submission(body.name, body.tasks, body.user, body.key, body.num_jobs)


class Plan(Job):
    forecast: bool = False


class CancelJobs(Body):
    ids: list[ListedId] | None = Field(None, max_length=_MOST_IDS)
    name: str | None = None
    all: bool = False
    graceful: bool = True
    grace_s: float | None = Field(None, ge=0, le=86_400)


class Preempt(Body):
    node: int = Field(0, ge=0)
    notice_s: float | None = Field(None, ge=0, le=86_400)


@router.post("/plan", responses=answer(records.Plan))
def plan(daemon: User, body: Plan) -> dict[str, Any]:
    """What a launch would try, in order, and what it would cost. Changes nothing. `forecast`: foresee cost and end,
    which takes some seconds."""
    return daemon.submissions.plan(body.name, body.tasks, foresees=body.forecast)


@router.post("/jobs", status_code=201, responses=answer(records.Submitted, status=201) | refusals(429))
async def launch(daemon: User, body: Launch) -> JSONResponse:
    """Accept a job, or `num_jobs` alike. A repeated `key` is answered with what it made the first time.

    503 with `Retry-After`: the controller has fallen behind.
    """
    accepted = await daemon.intake.take(submission(body))
    return JSONResponse({name: getattr(accepted, name) for name in _TOLD}, 201)


@router.get("/jobs", responses=answer(records.JobPage))
def queue(
    daemon: User,
    *,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 50,
    before: Annotated[int | None, Query(ge=0, le=_HIGHEST_ID)] = None,
    skip_finished: bool = False,
    status: str = "",
    name: str | None = None,
    ids: str = "",
) -> JSONResponse:
    """Jobs, newest first, with all their tasks. `name`: a whole name, or a pattern with `*`, `?` or `[a-z]`."""
    exactly, glob = (None, _glob(name)) if name and globs.is_glob(name) else (name, None)
    wanted = Filter(limit, before, skip_finished, _statuses(status), exactly, _ids(ids), glob)
    with daemon.database.connect() as conn:
        found = _told(daemon, queries.describe(conn, search.find_ids(conn, wanted), daemon.clock.now()))
        counts = daemon.counts.of(conn, daemon.clock.now())
    now = queries.iso(daemon.clock.now())
    # Written here, in a thread: a long page would hold up whatever else the event loop does.
    return JSONResponse({"now": now, "jobs": found, "counts": counts, "total": sum(counts.values())})


@router.get("/jobs/{job_id}", responses=answer(records.JobDetail) | refusals(404))
def show(daemon: User, job_id: JobId) -> dict[str, Any]:
    """A job with its tasks, attempts and timeline."""
    now = daemon.clock.now()
    with daemon.database.connect() as conn:
        tasks = _told(daemon, queries.describe(conn, [job_id], now))
        if not tasks:
            raise no_such_job(job_id)
        attempts = queries.attempts_of(conn, job_id, now)
        timeline = queries.timeline(conn, job_id)
    current = next((t for t in tasks if t["status"] != Status.SUCCEEDED), tasks[-1])
    return {**current, "now": queries.iso(now), "tasks": tasks, "attempts": attempts, "timeline": timeline}


@router.post("/jobs/cancel", responses=answer(records.Cancelled))
def cancel(daemon: User, body: CancelJobs) -> dict[str, Any]:
    """End jobs: by id, by name, or all. It is safe when it is answered: a letter to whoever owns each job."""
    if sum([body.ids is not None, body.name is not None, body.all]) != 1:
        raise Refused("say which jobs", where="ids", fix="give exactly one of ids, name and all")
    if body.name is not None and globs.is_glob(body.name):
        fix = f"give ids; which they are: perdure jobs queue --skip-finished --name '{body.name}'"
        raise Refused("jobs are cancelled by a whole name, not by a pattern", where="name", fix=fix)
    grace = 0.0 if not body.graceful else daemon.settings.limits.drain_s if body.grace_s is None else body.grace_s
    with daemon.database.connect() as conn:
        unfinished = Filter(limit=None, skip_finished=True, name=body.name, ids=tuple(body.ids or ()))
        wanted = search.find_ids(conn, unfinished)
        known = [] if body.all else search.find_ids(conn, replace(unfinished, skip_finished=False))
    asked = events.CancelRequested(grace * daemon.pace.speed)
    if wanted:
        with daemon.database.begin() as conn:
            mail.leave(conn, wanted, asked, daemon.clock.now())
        reach("cancel.recorded")
        with suppress(*UNAVAILABLE):  # then they are read a little later
            daemon.incoming.look()
    if len(wanted) <= _FEW:  # behind the letters: whoever asks for the queue next finds it there
        wait([daemon.reconciler.post(Turn(id)) for id in wanted], _SHOWN_WITHIN_S)
    return {
        "cancelled": sorted(wanted),
        "finished": sorted(set(known) - set(wanted)),
        "unknown": sorted(set(body.ids or ()) - set(known)),
    }


@router.post("/jobs/{job_id}/preempt", responses=answer(records.Preempted) | refusals(404, 409))
def preempt(daemon: User, job_id: JobId, body: Preempt) -> dict[str, Any]:
    """Rehearse an interruption of one of its nodes."""
    attempt = _running_attempt(daemon, job_id)
    node = next((n for n in attempt.nodes if n.rank == body.node), None)
    if node is None or node.instance_id is None:
        ranks = ", ".join(str(n.rank) for n in attempt.nodes if n.instance_id)
        raise Refused(f"job {job_id} has no node {body.node}", where="node", fix=f"nodes: {ranks}", status=409)
    cloud = daemon.clouds.get(attempt.offer.cloud)
    if not isinstance(cloud, Interruptible):
        raise Refused(f"the cloud {attempt.offer.cloud} can not rehearse a preemption", where="job_id", status=409)
    try:
        cloud.interrupt(attempt.offer.region, node.instance_id, notice_s=body.notice_s)
    except Exception as error:
        said = cloud.classify(error).message
        raise Refused(f"the cloud {attempt.offer.cloud} refused: {said}", where="job_id", status=409) from error
    reach("preemption.asked")
    told = "without notice" if body.notice_s is None else f"with a notice of {body.notice_s:g} s"
    note = Note("job.rehearsal", rank=body.node, message=f"a preemption of node {body.node} was asked for, {told}")
    daemon.reconciler.post(Turn(job_id, notes=(note,)))
    return {"instance_id": node.instance_id, "zone": attempt.offer.zone}


def _told(daemon: Services, tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the reason why a launch is held back, which the controller that holds it knows."""
    for task in tasks:
        if task["status"] in _MAY_LAUNCH and (why := daemon.why_waiting(task["job_id"], task["task_index"])):
            task["message"] = why
    return tasks


def _running_attempt(daemon: Services, job_id: int) -> AttemptView:
    with daemon.database.connect() as conn:
        view = jobs.load(conn, [job_id]).get(job_id)
    if view is None:
        raise no_such_job(job_id)
    if view.has_ended:
        raise Refused(f"job {job_id} has ended", where="job_id", status=409)
    live = [a for t in view.tasks for a in t.attempts if a.state is not AttemptState.REQUESTED and not a.terminating]
    if not live:
        raise Refused(f"job {job_id} has no machine now", where="job_id", fix="try again when it runs", status=409)
    return live[-1]


def no_such_job(job_id: int) -> Refused:
    return Refused(f"there is no job {job_id}", where="job_id", fix="see `perdure jobs queue -a`", status=404)


def _statuses(text: str) -> tuple[str, ...]:
    names = tuple(word.strip().upper() for word in text.split(",") if word.strip())
    unknown = [name for name in names if name not in Status.__members__]
    if unknown:
        raise Refused(f"unknown status {shown(unknown[0])}", where="status", fix=f"statuses: {', '.join(Status)}")
    return names


def _glob(pattern: str) -> Glob:
    try:
        return globs.read(pattern)
    except BadGlob as error:
        raise Refused(str(error), where="name", fix=error.fix) from error


def _ids(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if not (
            word.isascii() and word.isdecimal() and len(word) <= len(str(_HIGHEST_ID)) and int(word) <= _HIGHEST_ID
        ):
            raise Refused(f"{shown(word)} is no job's id", where="ids", fix="give whole numbers with commas between")
    if len(words) > _MOST_IDS:
        raise Refused(f"{len(words)} ids are too many", where="ids", fix=f"give at most {_MOST_IDS} at a time")
    return tuple(int(word) for word in words)
