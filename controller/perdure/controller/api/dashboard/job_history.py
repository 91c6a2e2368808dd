"""Routes for a job with a long history: its newest attempts with totals of all, and its timeline by pages."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from perdure.controller.api.access.permitted_objects import MAX_ID, VisibleJob, no_such_job
from perdure.controller.api.auth import Reader
from perdure.controller.api.dashboard import responses
from perdure.controller.api.routes.jobs import described_job
from perdure.controller.api.schemas import accepts_gzip, compressed, error_responses, json_bytes, json_response
from perdure.controller.store.queries import expenses, job_history, search
from perdure.controller.store.queries.search import Filter

router = APIRouter(prefix="/api/v1", tags=["jobs"], responses=error_responses(400, 401, 404, 503))

_EVENTS_PER_ATTEMPT = 20
_MAX_EVENTS = 1_000


@router.get("/jobs/{job_id}/recent", responses=json_response(responses.RecentJob))
def recent_job(
    caller: Reader, request: Request, job_id: VisibleJob, attempts: Annotated[int, Query(ge=1, le=1_000)] = 30
) -> Response:
    """A job with its newest `attempts` and what happened to them, at most the newest 1,000 entries of the timeline; and
    totals of all attempts."""
    context = caller.context
    max_events = min(_MAX_EVENTS, attempts * _EVENTS_PER_ATTEMPT)
    job = described_job(context, job_id, max_attempts=attempts, max_events=max_events)
    with context.database.connect() as conn:
        counts = job_history.counts_of(conn, job_id)
        lost = expenses.lost_work(conn, job_id, context.clock.now())
    totals = {
        "num_attempts": counts.attempts,
        "num_events": counts.events,
        "preemptions": counts.preemptions,
        "lost_s": lost and lost.lost_s,
        "lost_usd": lost and lost.lost_usd,
    }
    body = bytes(JSONResponse({**job, **totals}).body)  # serialized here, in a worker thread
    is_gzip = accepts_gzip(request.headers)
    return json_bytes(compressed(body) if is_gzip else body, is_gzip=is_gzip)


@router.get("/jobs/{job_id}/timeline", responses=json_response(responses.TimelinePage))
def job_timeline(
    caller: Reader,
    job_id: VisibleJob,
    *,
    before: Annotated[int | None, Query(ge=0, le=MAX_ID)] = None,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 50,
    text: Annotated[str, Query(max_length=200, pattern=r"^[^\x00]*$")] = "",
    checkpoints: bool = True,
) -> dict[str, Any]:
    """Entries of a job's timeline, the newest first: those before the one with the number `before`. `text`: only those
    that contain it, whatever the case of its letters. `checkpoints`: whether to include what is about checkpoints."""
    with caller.context.database.connect() as conn:
        if not search.find_ids(conn, Filter(ids=(job_id,))):
            raise no_such_job(job_id)
        return job_history.timeline_page(
            conn, job_id, before=before, limit=limit, text=text, with_checkpoints=checkpoints
        )
