"""Routes that stream text: a job's transcript, and the controller's log."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import chain
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import iterate_in_threadpool, run_in_threadpool
from fastapi.responses import StreamingResponse

from perdure.controller.api.access.permissions import Caller
from perdure.controller.api.access.permitted_objects import VisibleJob, no_such_job
from perdure.controller.api.access.shared_views import SharedViews
from perdure.controller.api.auth import Operator, Reader
from perdure.controller.api.context import ApiContext
from perdure.controller.api.schemas import error_responses, raw_response
from perdure.controller.store.logs.job_transcript import JobTranscript
from perdure.controller.store.logs.transcript_index import TranscriptView
from perdure.controller.store.queries import search
from perdure.controller.store.queries.search import Filter
from perdure.controller.submit.errors import RequestRejected

router = APIRouter(
    prefix="/api/v1", tags=["logs"], responses=error_responses(400, 401, 404, 503) | raw_response("text/plain")
)

# Subscriptions wake the streams; this bounds how long a missed wake-up can go unnoticed.
_POLL_INTERVAL_S = 1.0
_MAX_TAIL_LINES = 10_000_000

Result = TypeVar("Result")
TaskIndex = Annotated[int | None, Query(ge=0)]
Generation = Annotated[int | None, Query(ge=1)]


@router.get("/jobs/{job_id}/logs", response_class=StreamingResponse)
async def job_logs(
    caller: Reader,
    request: Request,
    job_id: VisibleJob,
    *,
    task: TaskIndex = None,
    attempt: Generation = None,
    follow: bool = False,
    tail: Annotated[int, Query(ge=0, le=_MAX_TAIL_LINES)] = 0,
    offset: Annotated[int, Query(ge=0)] = 0,
) -> StreamingResponse:
    """The transcript from byte `offset`, or its last `tail` lines (0: all); with `follow`, new output as it appears.

    A line of one of several nodes is ended after 1 MiB, and what follows is another one. `attempt`: only that of the
    attempts with this number. The header `Perdure-Offset` of the response has the offset of its first byte; with
    `tail`, `Perdure-Line` has the number of its first line, counted from 0.
    """
    transcript = await checked_transcript(caller.context, job_id, task, attempt)
    known: Iterable[bytes] = ()
    headers = {}
    skip = 0
    if tail or offset:

        async def begin(view: TranscriptView) -> tuple[int, Iterable[bytes]]:
            return await run_in_threadpool(_begin, view, tail, offset)

        (offset, known), view, transcript = await read_log(request, caller, transcript, begin)
        if tail:
            headers["Perdure-Line"] = str(max(0, view.num_lines - tail))
        skip = max(0, offset - view.size)
    headers["Perdure-Offset"] = str(offset)
    stream = _stream(caller, transcript, known, skip, follow)
    return StreamingResponse(stream, media_type="text/plain", headers=headers)


def _begin(view: TranscriptView, tail: int, offset: int) -> tuple[int, Iterable[bytes]]:
    """The offset of the last `tail` lines, or `offset`, and the bytes from there on, the first of which were read."""
    offset = view.start_of_tail(tail) if tail else offset
    pieces = view.pieces(offset, view.size)
    first = next(pieces, None)  # raises FileNotFoundError while another answer is still possible
    return offset, () if first is None else chain([first], pieces)


async def checked_transcript(context: ApiContext, job_id: int, task: int | None, attempt: int | None) -> JobTranscript:
    """The transcript of a job that exists, of a task that it has, and of an attempt that it has had. Raises
    RequestRejected (404)."""
    transcript = JobTranscript(context.database, context.logs, job_id, task, attempt)
    await run_in_threadpool(_require, context, transcript, task, attempt)
    return transcript


def _require(context: ApiContext, transcript: JobTranscript, task: int | None, attempt: int | None) -> None:
    job_id = transcript.job_id
    with context.database.connect() as conn:
        if not search.find_ids(conn, Filter(ids=(job_id,))):
            raise no_such_job(job_id)
    if task is not None and task not in (tasks := transcript.known_tasks()):
        fix = f"see `perdure jobs show {job_id}`: it has {len(tasks)}, counted from 0"
        raise RequestRejected(f"job {job_id} has no task {task}", where="task", fix=fix, status=404)
    if attempt is not None and attempt not in (known := transcript.known_attempts()):
        what = f"it has had {known[-1]}" if known else "it has had none yet"
        fix = f"see `perdure jobs show {job_id}`: {what}"
        raise RequestRejected(f"job {job_id} has no attempt {attempt}", where="attempt", fix=fix, status=404)


async def read_log(
    request: Request,
    caller: Caller,
    transcript: JobTranscript,
    function: Callable[[TranscriptView], Awaitable[Result]],
) -> tuple[Result, TranscriptView, JobTranscript]:
    """`SharedViews.apply` of this controller. Raises RequestRejected (404) if the log is being deleted."""
    state = request.app.state
    if not hasattr(state, "shared_views"):
        state.shared_views = SharedViews(state.context.logs, state.work_slots)
    views: SharedViews = state.shared_views
    try:
        return await views.apply(transcript, caller.name, function)
    except FileNotFoundError:
        fix = "the retention of logs is over; nothing is left of it in a while"
        raise RequestRejected(f"the log of job {transcript.job_id} is being deleted", fix=fix, status=404) from None


@router.get("/controller/logs", response_class=StreamingResponse)
async def controller_logs(
    caller: Operator, follow: bool = False, tail: Annotated[int, Query(ge=0, le=_MAX_TAIL_LINES)] = 0
) -> StreamingResponse:
    """The controller's log; with `follow`, new lines as they appear."""
    path = caller.context.settings.home / "controller.log"
    if not path.exists():
        raise RequestRejected("the controller has not written a log yet", status=404)

    async def lines() -> AsyncIterator[bytes]:
        with path.open("rb") as file:
            yield b"".join(deque(file, maxlen=tail or None))
            while follow and caller.is_valid():
                await asyncio.sleep(_POLL_INTERVAL_S)
                if data := file.read():
                    yield data

    return StreamingResponse(lines(), media_type="text/plain")


async def _stream(
    caller: Caller, transcript: JobTranscript, known: Iterable[bytes], skip: int, follow: bool
) -> AsyncIterator[bytes]:
    """`known`, then `transcript` without its first `skip` bytes; with `follow`, new output until the job ends, or the
    token of the caller is revoked or expires.

    New output alone costs no query of the job: only its bytes are read, or taken from a buffer.
    """
    with caller.context.job_updates.subscribe(transcript.job_id, _POLL_INTERVAL_S) as subscription:
        async for data in iterate_in_threadpool(known):
            if not caller.is_valid():
                return
            yield data
        has_changed = True
        while caller.is_valid():
            has_ended = has_changed and await run_in_threadpool(transcript.refresh)
            async for data in _new_data(transcript, has_changed):
                if skip < len(data):
                    yield data[skip:]
                skip = max(0, skip - len(data))
            if has_ended or not follow:
                return
            has_changed = await subscription.wait()


async def _new_data(transcript: JobTranscript, has_changed: bool) -> AsyncIterator[bytes]:
    if not has_changed and transcript.has_buffered:
        for data in transcript.read_current():
            yield data
        return
    async for data in iterate_in_threadpool(transcript.read_new() if has_changed else transcript.read_current()):
        yield data
