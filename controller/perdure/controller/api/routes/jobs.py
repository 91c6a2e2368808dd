"""Routes for jobs: plan, launch, queue, show, cancel, preempt.

A launch is handed to `submit.batching`; listings come from `store.queries.job_listing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from perdure.controller.api.access.permissions import Caller
from perdure.controller.api.access.permitted_objects import MAX_ID, ChangeableJob, VisibleJob, no_such_job
from perdure.controller.api.access.shared_reads import SharedReads
from perdure.controller.api.auth import Reader, Runner, Slots
from perdure.controller.api.context import ApiContext
from perdure.controller.api.schemas import compressed, error_responses, json_bytes, json_response
from perdure.controller.clouds.base.protocol import ExplainsWaits, Interruptible
from perdure.controller.peers import peer_messages
from perdure.controller.reconcile.work_items import JobEvent
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.store.access import audit, owners
from perdure.controller.store.access.roles import AccessRight
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.queries import globs, search, wait_reasons
from perdure.controller.store.queries import job_listing as queries
from perdure.controller.store.queries.clusters import cluster_of_job, wait_in_queue
from perdure.controller.store.queries.globs import BadGlob, Glob
from perdure.controller.store.queries.search import Filter
from perdure.controller.store.records import clusters, jobs
from perdure.controller.submit import plan as plans
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.service import Submission
from perdure.recovery import events
from perdure.recovery.actions import TimelineEntry
from perdure.recovery.job import AttemptView
from perdure.recovery.statuses import AttemptState, Status
from perdure.sdk.connection import api_types
from perdure.sdk.spec.problems import describe

router = APIRouter(prefix="/api/v1", tags=["jobs"], responses=error_responses(400, 401, 503))

ListedId = Annotated[int, Field(ge=0, le=MAX_ID)]
Key = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""An idempotency key. The database derives others from it, with a control character (`jobs.KEY_SEPARATOR`)."""
_LAUNCHING = (Status.STARTING, Status.RECOVERING)
_WITHOUT_MACHINE = {"cluster_resources": "", "cloud": None, "region": None, "zone": None, "market": None}
_RESPONSE_FIELDS = ("job_id", "job_ids", "name", "task_ids", "warnings")
_MAX_TASKS, _MAX_IDS = 1_000, 10_000
_MAX_SHARED_LIMIT = 200  # shared answers are kept for a while

# A cancel is safe once it is recorded. The response still waits until the queue shows it, unless that takes longer than
# this, or there are more jobs than this.
_CANCEL_VISIBLE_TIMEOUT_S = 2.0
_MAX_AWAITED_CANCELS = 50


class RequestBody(BaseModel):
    # Strict: `true` is not the job 1, and "2" is not 2.
    model_config = ConfigDict(extra="forbid", strict=True)


class JobBody(RequestBody):
    name: str | None = Field(None, max_length=200)
    tasks: list[dict[str, Any]] = Field(max_length=_MAX_TASKS)
    user: str = Field("", max_length=200)
    key: Key | None = None


class LaunchBody(JobBody):
    num_jobs: int = Field(1, ge=1, le=_MAX_IDS)


def submission(body: LaunchBody, caller: Caller | None = None) -> Submission:
    """The submission that a launch request describes. A named user's `user` is that of the token. `caller`: None in
    simulations, where the request says who calls."""
    if caller is None:
        return Submission(body.name, body.tasks, body.user, body.key, body.num_jobs)
    user, key = caller.user_for(body.user), caller.key_for(body.key)
    return Submission(
        body.name,
        body.tasks,
        user,
        key,
        body.num_jobs,
        actor=caller.actor,
        uploads_of=caller.changes,
        may_run_callbacks=caller.is_administrator,
    )


class PlanBody(JobBody):
    forecast: bool = False
    num_jobs: int = Field(1, ge=1, le=_MAX_IDS)


class CancelBody(RequestBody):
    ids: list[ListedId] | None = Field(None, max_length=_MAX_IDS)
    name: str | None = None
    all: bool = False
    graceful: bool = True
    grace_s: float | None = Field(None, ge=0, le=86_400)


class PreemptBody(RequestBody):
    node: int = Field(0, ge=0)
    notice_s: float | None = Field(None, ge=0, le=86_400)


@router.post("/plan", responses=json_response(api_types.Plan))
async def plan(caller: Reader, body: PlanBody, slots: Slots) -> JSONResponse:
    """The offers that a launch would try, in order, and what they cost. Changes nothing.

    `forecast`: include the expected cost and end, which takes some seconds. `num_jobs`: as for a launch; that of the
    answer is the number of jobs that a launch makes, and all prices are those of one job. 503 with `Retry-After`: too
    many plans are being computed, of the caller or of all.
    """
    async with slots.of(caller.name):
        return await run_in_threadpool(_plan, caller.context, body)


def _plan(context: ApiContext, body: PlanBody) -> JSONResponse:
    now, many = context.clock.now(), body.num_jobs
    made = plans.plan(context.compiler, body.name, body.tasks, now, num_jobs=many, with_forecast=body.forecast)
    return JSONResponse(jsonable_encoder(made))


@router.post("/jobs", status_code=201, responses=json_response(api_types.Submitted, status=201) | error_responses(429))
async def launch(caller: Runner, body: LaunchBody) -> JSONResponse:
    """Accept one job, or `num_jobs` identical ones. Resubmitting with the same `key` returns the original job.

    503 with `Retry-After`: the controller is overloaded.
    """
    accepted = await caller.context.submission_batcher.submit(submission(body, caller))
    return JSONResponse({name: getattr(accepted, name) for name in _RESPONSE_FIELDS}, 201)


@router.get("/jobs", responses=json_response(api_types.JobPage))
async def queue(
    caller: Reader,
    request: Request,
    *,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 50,
    before: Annotated[int | None, Query(ge=0, le=MAX_ID)] = None,
    skip_finished: bool = False,
    status: str = "",
    name: str | None = None,
    ids: str | None = None,
    user: Annotated[str | None, Query(max_length=200)] = None,
    shared: bool = False,
) -> Response:
    """Jobs, newest first, with all their tasks. `name`: an exact name, or a pattern with `*`, `?` or `[a-z]`.

    `counts` and `total` are those of all jobs that the caller may see. `shared`: the answer may be that to somebody
    else, from the last second, if no job has changed since; for pages that read a list again at each change.
    """
    if caller.sees is not None and user not in (None, caller.sees):
        ids = ""  # those of somebody else
    _require_name(name)
    exact_name, glob = (None, _glob(name)) if name is not None and globs.is_glob(name) else (name, None)
    filter_ = Filter(
        limit,
        before,
        skip_finished,
        _statuses(status),
        exact_name,
        None if ids is None else _ids(ids),
        glob,
        user=user if caller.sees is None else caller.sees,
    )
    compute = partial(_computed_page, caller.context, filter_, caller.sees)
    if not shared or limit > _MAX_SHARED_LIMIT:
        return json_bytes(await compute(False), is_gzip=False)
    reads: SharedReads = request.app.state.shared_reads
    return await reads.answer(request, caller, AccessRight.READ, compute)  # compressed once for all viewers


async def _computed_page(context: ApiContext, filter_: Filter, sees: str | None, is_gzip: bool) -> bytes:
    return await run_in_threadpool(_page_of_queue, context, filter_, sees, is_gzip)


def _page_of_queue(context: ApiContext, filter_: Filter, sees: str | None, is_gzip: bool) -> bytes:
    with context.database.connect() as conn:
        ids_shown = search.find_ids(conn, filter_)
        tasks = _with_blocked_reasons(context, queries.describe(conn, ids_shown, context.clock.now()))
        counts = context.counts.by_status(conn, context.clock.now(), sees)
    now = queries.iso(context.clock.now())
    # Serialized here, in a worker thread: a long page would block the event loop.
    page = JSONResponse({"now": now, "jobs": tasks, "counts": counts, "total": sum(counts.values())})
    return compressed(bytes(page.body)) if is_gzip else bytes(page.body)


@router.get("/jobs/{job_id}", responses=json_response(api_types.JobDetail) | error_responses(404))
def show(caller: Reader, job_id: VisibleJob) -> dict[str, Any]:
    """A job with its tasks, attempts and timeline."""
    return described_job(caller.context, job_id)


def described_job(
    context: ApiContext, job_id: int, *, max_attempts: int | None = None, max_events: int | None = None
) -> dict[str, Any]:
    """A `JobDetail`, with the newest attempts and entries of its timeline. Raises RequestRejected (404)."""
    now = context.clock.now()
    with context.database.connect() as conn:
        tasks = _with_blocked_reasons(context, queries.describe(conn, [job_id], now))
        if not tasks:
            raise no_such_job(job_id)
        attempts = queries.attempts_of(conn, job_id, now, max_attempts)
        timeline = queries.timeline(conn, job_id, max_events)
        cluster, queued = cluster_of_job(conn, job_id), wait_in_queue(conn, job_id, now)
    current = next((t for t in tasks if t["status"] != Status.SUCCEEDED), tasks[-1])
    index = current["task_index"]
    blocked = queued or context.launch_blocked_reason(job_id, index)
    why = wait_reasons.sentence(tasks, attempts, timeline, index=index, blocked=blocked)
    waits = {"waits_for": why, "waits_since": wait_reasons.since(current, attempts) if why else None}
    parts = {"tasks": tasks, "attempts": attempts, "timeline": timeline}
    return {**current, "now": queries.iso(now), **parts, **cluster, **waits}


@router.post("/jobs/cancel", responses=json_response(api_types.Cancelled) | error_responses(409))
def cancel(caller: Runner, body: CancelBody) -> dict[str, Any]:
    """Cancel jobs: by id, by name, or all, of those that the caller may cancel. The response is sent once a message to
    the owner of each job is recorded.

    An empty list of ids cancels nothing. A job that holds the machines of a cluster is refused with 409: its cluster is
    stopped or ended instead.
    """
    context, of = caller.context, caller.changes
    if sum([body.ids is not None, body.name is not None, body.all]) != 1:
        raise RequestRejected("say which jobs", where="ids", fix="give exactly one of ids, name and all")
    _require_name(body.name)
    if body.name is not None and globs.is_glob(body.name):
        fix = f"give ids; to list them: perdure jobs queue --skip-finished --name '{body.name}'"
        raise RequestRejected("jobs are cancelled by an exact name, not by a pattern", where="name", fix=fix)
    grace_s = context.settings.timeouts.drain_timeout_s if body.grace_s is None else body.grace_s
    if not body.graceful:
        grace_s = 0.0
    with context.database.connect() as conn:
        own = body.ids or () if of is None else owners.owned_jobs(conn, body.ids or (), of)
        for id, name in clusters.held_by(conn, own).items():
            message = f"job {id} holds the machines of the cluster {name}"
            raise RequestRejected(message, where="ids", fix=f"run: perdure down {name}", status=409)
        unfinished = Filter(
            limit=None, skip_finished=True, name=body.name, ids=None if body.ids is None else tuple(body.ids), user=of
        )
        to_cancel = search.find_ids(conn, unfinished)
        matching = [] if body.all else search.find_ids(conn, replace(unfinished, skip_finished=False))
        to_cancel = sorted({*to_cancel, *search.jobs_with_kept_machines(conn, None if body.all else matching, of)})
    event = events.CancelRequested(grace_s * context.time_scale.speed)
    if to_cancel:
        with context.database.begin() as conn:
            peer_messages.send_to_owners(conn, to_cancel, event, context.clock.now())
            audit.record(
                conn, caller.deed("job.cancel", jobs_text(to_cancel), ids=to_cancel[:100]), context.clock.now()
            )
        failpoint("cancel.recorded")
        with suppress(*UNAVAILABLE):  # then the messages are read a little later
            context.peer_inbox.poll()
    if len(to_cancel) <= _MAX_AWAITED_CANCELS:  # these events are handled after the messages
        wait([context.inbox.submit(JobEvent(id)) for id in to_cancel], _CANCEL_VISIBLE_TIMEOUT_S)
    return {
        "cancelled": sorted(to_cancel),
        "finished": sorted(set(matching) - set(to_cancel)),
        "unknown": sorted(set(body.ids or ()) - set(matching)),
    }


@router.post("/jobs/{job_id}/preempt", responses=json_response(api_types.Preempted) | error_responses(404, 409))
def preempt(caller: Runner, job_id: ChangeableJob, body: PreemptBody) -> dict[str, Any]:
    """Simulate an interruption of one node of a job."""
    context = caller.context
    attempt = _running_attempt(context, job_id)
    node = next((n for n in attempt.nodes if n.rank == body.node), None)
    if node is None or node.instance_id is None:
        ranks = ", ".join(str(n.rank) for n in attempt.nodes if n.instance_id)
        raise RequestRejected(f"job {job_id} has no node {body.node}", where="node", fix=f"nodes: {ranks}", status=409)
    cloud = context.clouds.get(attempt.offer.cloud)
    if not isinstance(cloud, Interruptible):
        raise RequestRejected(
            f"the cloud {attempt.offer.cloud} cannot simulate a preemption", where="job_id", status=409
        )
    with context.database.begin() as conn:
        audit.record(conn, caller.deed("job.preempt", f"job {job_id}", node=body.node), context.clock.now())
    try:
        cloud.interrupt(attempt.offer.region, node.instance_id, notice_s=body.notice_s)
    except Exception as error:
        reason = cloud.classify(error).message
        raise RequestRejected(
            f"the cloud {attempt.offer.cloud} rejected it: {reason}", where="job_id", status=409
        ) from error
    failpoint("preemption.requested")
    how = "without notice" if body.notice_s is None else f"with a notice of {body.notice_s:g} s"
    entry = TimelineEntry(
        "job.preemption_simulated", rank=body.node, message=f"a preemption of node {body.node} was requested, {how}"
    )
    context.inbox.submit(JobEvent(job_id, notes=(entry,)))
    return {"instance_id": node.instance_id, "zone": attempt.offer.zone}


def _with_blocked_reasons(context: ApiContext, tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tasks; those whose launch this controller holds back wait for the reason, and have no machine anywhere.

    Those whose machines wait, such as in a queue of their cloud, get the cloud's words.
    """
    for task in tasks:
        if task["status"] not in _LAUNCHING:
            continue
        if reason := context.launch_blocked_reason(task["job_id"], task["task_index"]):
            task |= {**_WITHOUT_MACHINE, "message": reason}
            if task["status"] == Status.STARTING:
                task["status"] = Status.PENDING
        elif isinstance(cloud := context.clouds.get(task["cloud"]), ExplainsWaits):
            task["message"] = (
                cloud.why_waiting(context.controller_id, task["job_id"], task["task_index"]) or task["message"]
            )
    return tasks


def _running_attempt(context: ApiContext, job_id: int) -> AttemptView:
    with context.database.connect() as conn:
        view = jobs.load(conn, [job_id]).get(job_id)
    if view is None:
        raise no_such_job(job_id)
    if view.has_ended:
        raise RequestRejected(f"job {job_id} has ended", where="job_id", status=409)
    live = [a for t in view.tasks for a in t.attempts if a.state is not AttemptState.REQUESTED and not a.terminating]
    if not live:
        raise RequestRejected(
            f"job {job_id} has no machine now", where="job_id", fix="try again when it runs", status=409
        )
    return live[-1]


def jobs_text(ids: Sequence[int]) -> str:
    """`job 7`, or `3 jobs, 5 to 9`: the target of an entry of the audit log."""
    return f"job {ids[0]}" if len(ids) == 1 else f"{len(ids)} jobs, {min(ids)} to {max(ids)}"


def _statuses(text: str) -> tuple[str, ...]:
    names = tuple(word.strip().upper() for word in text.split(",") if word.strip())
    unknown = [name for name in names if name not in Status.__members__]
    if unknown:
        raise RequestRejected(
            f"unknown status {describe(unknown[0])}", where="status", fix=f"statuses: {', '.join(Status)}"
        )
    return names


def _require_name(name: str | None) -> None:
    """Reject an empty name: a script whose variable is unset would otherwise get the jobs of everybody."""
    if name == "":
        raise RequestRejected("the name is empty", where="name", fix="give a job's name, or leave `name` out")


def _glob(pattern: str) -> Glob:
    try:
        return globs.parse(pattern)
    except BadGlob as error:
        raise RequestRejected(str(error), where="name", fix=error.fix) from error


def _ids(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if not (word.isascii() and word.isdecimal() and len(word) <= len(str(MAX_ID)) and int(word) <= MAX_ID):
            raise RequestRejected(
                f"{describe(word)} is not a job id", where="ids", fix="give whole numbers, separated by commas"
            )
    if len(words) > _MAX_IDS:
        raise RequestRejected(f"{len(words)} ids are too many", where="ids", fix=f"give at most {_MAX_IDS} at a time")
    return tuple(int(word) for word in words)
