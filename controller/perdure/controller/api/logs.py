"""Routes that stream text: a job's log, the controller's own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.concurrency import iterate_in_threadpool, run_in_threadpool
from fastapi.responses import StreamingResponse
from sqlalchemy import Row

from perdure.controller.api.auth import User
from perdure.controller.api.jobs import JobId, no_such_job
from perdure.controller.api.schemas import content, refusals
from perdure.controller.refusing import Refused
from perdure.controller.services import Services
from perdure.controller.store import queries, search
from perdure.controller.store.outline import outline
from perdure.controller.store.search import Filter
from perdure.controller.transcript import AttemptInfo, Transcript, start_of_tail
from perdure.recovery.statuses import AttemptState, Status

router = APIRouter(prefix="/api/v1", tags=["logs"], responses=refusals(400, 401, 404, 503) | content("text/plain"))

# Followers are woken by what happens; this bounds how long a missed wake-up can go unnoticed.
_LOOK_AGAIN_S = 1.0
_MOST_LINES = 10_000_000


@router.get("/jobs/{job_id}/logs", response_class=StreamingResponse)
async def job_logs(
    daemon: User,
    job_id: JobId,
    *,
    task: Annotated[int | None, Query(ge=0)] = None,
    follow: bool = False,
    tail: Annotated[int, Query(ge=0, le=_MOST_LINES)] = 0,
    offset: Annotated[int, Query(ge=0)] = 0,
) -> StreamingResponse:
    """The transcript from byte `offset` of it, or its last `tail` lines (0: all), and then as it grows."""
    reader = _Reader(daemon, job_id, task)
    if not await run_in_threadpool(reader.exists):
        raise no_such_job(job_id)
    if tail:
        offset = await run_in_threadpool(_start_of_tail, _Reader(daemon, job_id, task), tail)
    headers = {"Perdure-Offset": str(offset)}
    return StreamingResponse(_stream(daemon, reader, offset, follow), media_type="text/plain", headers=headers)


@router.get("/controller/logs", response_class=StreamingResponse)
async def controller_logs(
    daemon: User, follow: bool = False, tail: Annotated[int, Query(ge=0, le=_MOST_LINES)] = 0
) -> StreamingResponse:
    """The controller's own log, and then as it grows."""
    path = daemon.settings.home / "controller.log"
    if not path.exists():
        raise Refused("the controller has written no log yet", status=404)

    async def lines() -> AsyncIterator[bytes]:
        with path.open("rb") as file:
            yield b"".join(deque(file, maxlen=tail or None))
            while follow:
                await asyncio.sleep(_LOOK_AGAIN_S)
                if data := file.read():
                    yield data

    return StreamingResponse(lines(), media_type="text/plain")


class _Reader:
    """Reads one job's transcript on. `look` and `more` ask the database, and want a worker thread; `printed` does so
    unless it `is_at_hand`."""

    def __init__(self, daemon: Services, job_id: int, task: int | None) -> None:
        self._daemon = daemon
        self.job_id = job_id
        self._task = task
        self._attempts: list[AttemptInfo] = []
        self._transcript = Transcript(daemon.logs, lambda: self._attempts)
        self.printed = self._transcript.printed

    def exists(self) -> bool:
        with self._daemon.database.connect() as conn:
            return bool(search.find_ids(conn, Filter(ids=(self.job_id,))))

    def more(self) -> Iterator[bytes]:
        """As far as it had come at the last look."""
        return self._transcript.more()

    @property
    def is_at_hand(self) -> bool:
        return self._transcript.is_at_hand

    def look(self) -> bool:
        """Whether all is over: the log grows no more. Read before the log, so that nothing of it is missed."""
        rows = outline(self._daemon.database, self.job_id)
        has_several = len({row.task_index for row in rows}) > 1
        wanted = [row for row in rows if self._task in (None, row.task_index)]
        self._attempts = [self._info(row, has_several) for row in wanted if row.generation is not None]
        return all(Status(row.status).is_terminal for row in wanted)

    def _info(self, row: Row[Any], has_several: bool) -> AttemptInfo:
        offer = row.offer
        return AttemptInfo(
            key=(self.job_id, row.task_index, row.generation),
            num_nodes=row.nodes,
            where=f"{offer['cloud']}/{offer['region']}/{offer['zone']} {offer['instance_type']} {offer['market']}",
            requested_at=queries.iso(row.requested_at) or "",
            task_name=row.name if has_several else "",
            is_over=row.state in (AttemptState.STOPPED, AttemptState.GONE),
            reason=row.reason,
        )


def _start_of_tail(reader: _Reader, count: int) -> int:
    reader.look()
    return start_of_tail(reader.more(), count)


async def _stream(daemon: Services, reader: _Reader, skip: int, follow: bool) -> AsyncIterator[bytes]:
    """The transcript less its first `skip` bytes; as it grows, until the job's end, when following.

    A line that is printed costs no look at the job: only its bytes are read, and not even these where they are at hand.
    """
    with daemon.changes.follow(reader.job_id, _LOOK_AGAIN_S) as follower:
        has_changed = True
        while True:
            has_ended = has_changed and await run_in_threadpool(reader.look)
            async for data in _new(reader, has_changed):
                if skip < len(data):
                    yield data[skip:]
                skip = max(0, skip - len(data))
            if has_ended or not follow:
                return
            has_changed = await follower.wait()


async def _new(reader: _Reader, has_changed: bool) -> AsyncIterator[bytes]:
    if not has_changed and reader.is_at_hand:
        for data in reader.printed():
            yield data
        return
    async for data in iterate_in_threadpool(reader.more() if has_changed else reader.printed()):
        yield data
