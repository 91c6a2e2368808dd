"""Routes that stream text: a job's log, the controller's own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.concurrency import iterate_in_threadpool, run_in_threadpool
from fastapi.responses import StreamingResponse

from holdfast.controller.api.auth import User
from holdfast.controller.api.jobs import JobId, no_such_job
from holdfast.controller.api.schemas import content, refusals
from holdfast.controller.refusing import Refused
from holdfast.controller.services import Services
from holdfast.controller.store import queries, search
from holdfast.controller.store.search import Filter
from holdfast.controller.transcript import AttemptInfo, Transcript, start_of_tail
from holdfast.recovery.statuses import AttemptState, Status

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
        offset = await run_in_threadpool(start_of_tail, _Reader(daemon, job_id, task).more(), tail)
    headers = {"Holdfast-Offset": str(offset)}
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
    """Reads one job's transcript on, in worker threads."""

    def __init__(self, daemon: Services, job_id: int, task: int | None) -> None:
        self._daemon = daemon
        self.job_id = job_id
        self._task = task
        self._transcript = Transcript(daemon.logs, self._attempts)

    def exists(self) -> bool:
        with self._daemon.database.connect() as conn:
            return bool(search.find_ids(conn, Filter(ids=(self.job_id,))))

    def more(self) -> Iterator[bytes]:
        return self._transcript.more()

    def printed(self) -> Iterator[bytes]:
        return self._transcript.printed()

    def has_ended(self) -> bool:
        with self._daemon.database.connect() as conn:
            tasks = queries.describe(conn, [self.job_id], self._daemon.clock.now())
        return all(Status(t["status"]).is_terminal for t in tasks if self._task in (None, t["task_index"]))

    def _attempts(self) -> list[AttemptInfo]:
        with self._daemon.database.connect() as conn:
            found = queries.attempts_of(conn, self.job_id, self._daemon.clock.now())
            names = {t["task_index"]: t for t in queries.describe(conn, [self.job_id], self._daemon.clock.now())}
        return [
            AttemptInfo(
                key=(self.job_id, a["task_index"], a["generation"]),
                num_nodes=len(a["nodes"]),
                where=f"{a['cloud']}/{a['region']}/{a['zone']} {a['instance_type']} {a['market']}",
                requested_at=a["requested_at"],
                task_name=names[a["task_index"]]["task_name"] if len(names) > 1 else "",
                is_over=a["state"] in (AttemptState.STOPPED, AttemptState.GONE),
                reason=a["reason"],
            )
            for a in found
            if self._task in (None, a["task_index"])
        ]


async def _stream(daemon: Services, reader: _Reader, skip: int, follow: bool) -> AsyncIterator[bytes]:
    """The transcript less its first `skip` bytes; as it grows, until the job's end, when following.

    A line that is printed costs no look at the database: only its bytes are read.
    """
    with daemon.changes.follow(reader.job_id, _LOOK_AGAIN_S) as follower:
        has_changed = True
        while True:
            ended = not follow or (has_changed and await run_in_threadpool(reader.has_ended))
            async for data in iterate_in_threadpool(reader.more() if has_changed else reader.printed()):
                if skip < len(data):
                    yield data[skip:]
                skip = max(0, skip - len(data))
            if ended:
                return
            has_changed = await follower.wait()
