"""Routes that show parts of a long log: some of its lines, where its attempts begin, which lines have a text."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from perdure.controller.api.access.permitted_objects import MAX_ID, VisibleJob
from perdure.controller.api.auth import Reader, Slots
from perdure.controller.api.dashboard import responses
from perdure.controller.api.routes.logs import Generation, TaskIndex, checked_transcript, read_log
from perdure.controller.api.schemas import error_responses, json_response, raw_response
from perdure.controller.store.logs.transcript_index import TranscriptView
from perdure.controller.store.logs.transcript_search import SearchResult, search_down, search_up
from perdure.controller.submit.errors import RequestRejected

router = APIRouter(prefix="/api/v1", tags=["logs"], responses=error_responses(400, 401, 404, 503))

MAX_LINES = 1_000
"""How many lines one call returns."""
_MAX_MATCHES = 1_000
Line = Annotated[int, Query(ge=0, le=MAX_ID)]


@router.get("/jobs/{job_id}/logs/lines", response_class=Response, responses=raw_response("text/plain"))
async def log_lines(
    caller: Reader,
    request: Request,
    job_id: VisibleJob,
    slots: Slots,
    *,
    first: Line = 0,
    count: Annotated[int, Query(ge=1, le=MAX_LINES)] = 100,
    task: TaskIndex = None,
    attempt: Generation = None,
) -> Response:
    """Some lines of the transcript, from line `first` on, counted from 0. Each ends with a newline here, and is cut
    after 16 KiB. The header `Perdure-Lines` of the response has the number of all lines."""
    transcript = await checked_transcript(caller.context, job_id, task, attempt)

    async def read(view: TranscriptView) -> list[bytes]:
        async with slots.of(caller.name):
            return await run_in_threadpool(view.lines, first, count)

    lines, view, _ = await read_log(request, caller, transcript, read)
    text = b"".join(line + b"\n" for line in lines)
    return Response(text, media_type="text/plain", headers={"Perdure-Lines": str(view.num_lines)})


@router.get("/jobs/{job_id}/logs/summary", responses=json_response(responses.LogSummary))
async def log_summary(
    caller: Reader,
    request: Request,
    job_id: VisibleJob,
    *,
    task: TaskIndex = None,
    attempt: Generation = None,
) -> dict[str, Any]:
    """How long the transcript is, and where its attempts begin. The first call for a log reads all of it."""
    transcript = await checked_transcript(caller.context, job_id, task, attempt)

    async def check(view: TranscriptView) -> None:
        await run_in_threadpool(view.require_stored)

    _, view, _ = await read_log(request, caller, transcript, check)
    marks = [[mark.task_index, mark.generation, mark.line] for mark in view.attempts]
    return {"lines": view.num_lines, "bytes": view.size, "is_final": view.is_final, "attempts": marks}


@router.get("/jobs/{job_id}/logs/search", responses=json_response(responses.LogMatches))
async def search_log(
    caller: Reader,
    request: Request,
    job_id: VisibleJob,
    slots: Slots,
    *,
    text: Annotated[str, Query(min_length=1, max_length=500, pattern=r"^[^\x00\r\n\x1b]+$")],
    first: Line | None = None,
    before: Line | None = None,
    limit: Annotated[int, Query(ge=1, le=_MAX_MATCHES)] = 100,
    task: TaskIndex = None,
    attempt: Generation = None,
) -> dict[str, Any]:
    """The lines that have `text`, whatever the case of its letters: from line `first` on, or before line `before`, the
    last one first. Searches for about a second; `continue_at` is the `first`, or the `before`, of the next call. Of a
    line of several MiB, only about the first MiB is searched."""
    if (first is None) == (before is None):
        raise RequestRejected("say where to search", where="first", fix="give exactly one of first and before")
    transcript = await checked_transcript(caller.context, job_id, task, attempt)

    async def find(view: TranscriptView) -> SearchResult:
        async with slots.of(caller.name):
            if before is not None:
                return await run_in_threadpool(search_up, view, text, before, limit)
            return await run_in_threadpool(search_down, view, text, first or 0, limit)

    matches, _, _ = await read_log(request, caller, transcript, find)
    return {"lines": matches.lines, "continue_at": matches.continue_at}
