"""Routes that stream text: a job's transcript, and the controller's log."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.concurrency import iterate_in_threadpool, run_in_threadpool
from fastapi.responses import StreamingResponse
from sqlalchemy import Row

from perdure.controller.api.access.permissions import Caller
from perdure.controller.api.access.permitted_objects import VisibleJob, no_such_job
from perdure.controller.api.auth import Operator, Reader
from perdure.controller.api.context import ApiContext
from perdure.controller.api.schemas import error_responses, raw_response
from perdure.controller.store.logs.transcript import AttemptInfo, Transcript, start_of_tail
from perdure.controller.store.queries import job_listing, search
from perdure.controller.store.queries.log_attempts import load_log_attempts, load_refusals, load_stops
from perdure.controller.store.queries.search import Filter
from perdure.controller.submit.errors import RequestRejected
from perdure.recovery.market.slot_queue import SLOT_CLOUD
from perdure.recovery.reasons import PREEMPTIONS
from perdure.recovery.statuses import AttemptState, Status

router = APIRouter(
    prefix="/api/v1", tags=["logs"], responses=error_responses(400, 401, 404, 503) | raw_response("text/plain")
)

# Subscriptions wake the streams; this bounds how long a missed wake-up can go unnoticed.
_POLL_INTERVAL_S = 1.0
_MAX_TAIL_LINES = 10_000_000
_ENDED = (AttemptState.STOPPED, AttemptState.GONE)


@router.get("/jobs/{job_id}/logs", response_class=StreamingResponse)
async def job_logs(
    caller: Reader,
    job_id: VisibleJob,
    *,
    task: Annotated[int | None, Query(ge=0)] = None,
    attempt: Annotated[int | None, Query(ge=1)] = None,
    follow: bool = False,
    tail: Annotated[int, Query(ge=0, le=_MAX_TAIL_LINES)] = 0,
    offset: Annotated[int, Query(ge=0)] = 0,
) -> StreamingResponse:
    """The transcript from byte `offset`, or its last `tail` lines (0: all); with `follow`, new output as it appears.

    `attempt`: only that of the attempts with this number.
    """
    context = caller.context
    reader = _TranscriptReader(context, job_id, task, attempt)
    if not await run_in_threadpool(reader.exists):
        raise no_such_job(job_id)
    if attempt is not None:
        await run_in_threadpool(reader.require_attempt)
    if tail:
        offset = await run_in_threadpool(_start_of_tail, _TranscriptReader(context, job_id, task, attempt), tail)
    headers = {"Perdure-Offset": str(offset)}
    return StreamingResponse(_stream(caller, reader, offset, follow), media_type="text/plain", headers=headers)


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


class _TranscriptReader:
    """Reads one job's transcript piece by piece.

    `refresh` and `read_new` query the database, so they need a worker thread; so does `read_current`, unless
    `has_buffered`.
    """

    def __init__(self, context: ApiContext, job_id: int, task: int | None, attempt: int | None) -> None:
        self._context = context
        self.job_id = job_id
        self._task = task
        self._attempt = attempt
        self._attempts: list[AttemptInfo] = []
        self._without_reason: set[tuple[int, int]] = set()
        self._refusals: dict[tuple[int, int], str] = {}
        self._lost_slots: set[tuple[int, int]] = set()
        self._stops: set[tuple[int, int]] = set()
        self._transcript = Transcript(context.logs, lambda: self._attempts)
        self.read_current = self._transcript.read_current

    def exists(self) -> bool:
        with self._context.database.connect() as conn:
            return bool(search.find_ids(conn, Filter(ids=(self.job_id,))))

    def require_attempt(self) -> None:
        """Raises RequestRejected (404) if there is no attempt of the number that was asked for."""
        rows = [row for row in load_log_attempts(self._context.database, self.job_id) if self._is_of_task(row)]
        known = sorted({row.generation for row in rows if row.generation is not None})
        if self._attempt not in known:
            what = f"it has had {known[-1]}" if known else "it has had none yet"
            fix = f"see `perdure jobs show {self.job_id}`: {what}"
            raise RequestRejected(
                f"job {self.job_id} has no attempt {self._attempt}", where="attempt", fix=fix, status=404
            )

    def read_new(self) -> Iterator[bytes]:
        """The output since the last call, up to the state of the last `refresh`."""
        return self._transcript.read_new()

    @property
    def has_buffered(self) -> bool:
        return self._transcript.has_buffered

    def refresh(self) -> bool:
        """Load the job's attempts. Returns whether all tasks, or the attempts asked for, have ended: the log is final.

        Call it before the log is read, so that nothing is missed.
        """
        rows = load_log_attempts(self._context.database, self.job_id)
        has_several = len({row.task_index for row in rows}) > 1
        shown = [row for row in rows if self._is_of_task(row) and self._attempt in (None, row.generation)]
        self._load_refusals(shown)
        self._load_stops(shown)
        self._attempts = [self._info(row, has_several) for row in shown if _is_shown(row)]
        is_final = all(Status(row.status).is_terminal for row in shown)
        return is_final or (self._attempt is not None and all(row.state in _ENDED for row in shown))

    def _is_of_task(self, row: Row[Any]) -> bool:
        return self._task in (None, row.task_index)

    def _load_refusals(self, rows: Sequence[Row[Any]]) -> None:
        """Load why clouds refused attempts, if one ended since the last call without a reason of its own."""
        ended = {(r.task_index, r.generation) for r in rows if r.state in _ENDED and r.reason is None}
        if ended - self._without_reason:
            self._without_reason = ended
            self._refusals = load_refusals(self._context.database, self.job_id)

    def _load_stops(self, rows: Sequence[Row[Any]]) -> None:
        """Load which slots were lost because the cluster was stopped, if one was lost since the last call."""
        lost = {(r.task_index, r.generation) for r in rows if _is_on_slot(r) and r.reason in PREEMPTIONS}
        if lost - self._lost_slots:
            self._lost_slots = lost
            self._stops = load_stops(self._context.database, self.job_id)

    def _info(self, row: Row[Any], has_several: bool) -> AttemptInfo:
        offer, reason = row.offer, row.reason
        where = f"{offer['cloud']}/{offer['region']}/{offer['zone']} {offer['instance_type']} {offer['market']}"
        if _is_on_slot(row):
            where = f"cluster {offer['region']}"
            if (row.task_index, row.generation) in self._stops and reason in PREEMPTIONS:
                reason = f"{where} was stopped"
        return AttemptInfo(
            key=(self.job_id, row.task_index, row.generation),
            num_nodes=row.nodes,
            where=where,
            requested_at=job_listing.iso(row.requested_at) or "",
            task_name=row.name if has_several else "",
            has_ended=row.state in _ENDED,
            reason=reason,
            refusal=self._refusals.get((row.task_index, row.generation)),
        )


def _is_on_slot(row: Row[Any]) -> bool:
    return row.generation is not None and row.offer["cloud"] == SLOT_CLOUD


def _is_shown(row: Row[Any]) -> bool:
    """Whether the log has the attempt. A slot that is refused, since another job has taken it, means waiting longer."""
    return row.generation is not None and not (_is_on_slot(row) and row.booted_at is None)


def _start_of_tail(reader: _TranscriptReader, count: int) -> int:
    reader.refresh()
    return start_of_tail(reader.read_new(), count)


async def _stream(caller: Caller, reader: _TranscriptReader, skip: int, follow: bool) -> AsyncIterator[bytes]:
    """The transcript without its first `skip` bytes; with `follow`, new output until the job ends, or the token of the
    caller is revoked or expires.

    New output alone costs no query of the job: only its bytes are read, or taken from a buffer.
    """
    with caller.context.job_updates.subscribe(reader.job_id, _POLL_INTERVAL_S) as subscription:
        has_changed = True
        while caller.is_valid():
            has_ended = has_changed and await run_in_threadpool(reader.refresh)
            async for data in _new_data(reader, has_changed):
                if skip < len(data):
                    yield data[skip:]
                skip = max(0, skip - len(data))
            if has_ended or not follow:
                return
            has_changed = await subscription.wait()


async def _new_data(reader: _TranscriptReader, has_changed: bool) -> AsyncIterator[bytes]:
    if not has_changed and reader.has_buffered:
        for data in reader.read_current():
            yield data
        return
    async for data in iterate_in_threadpool(reader.read_new() if has_changed else reader.read_current()):
        yield data
