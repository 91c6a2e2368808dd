"""The stream of hints: which jobs have changed, as server-sent events. A page reads what it shows again.

Hints are merged, at most four a second for each follower, and the first after a quiet time is sent at once. They are
not numbered: a follower that was cut off reads everything again.

The more followers, the rarer are the hints of each, and they are sent to one follower after the other: all of them read
what they show again, and the reports of nodes would have to wait for that.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from perdure.controller.api.access.job_owner_cache import JobOwnerCache
from perdure.controller.api.access.permissions import Caller
from perdure.controller.api.auth import Reader, Session
from perdure.controller.api.dashboard.sign_in import BrowserSession, BrowserSessions
from perdure.controller.api.schemas import error_responses, raw_response
from perdure.controller.submit.errors import Overloaded

router = APIRouter(
    prefix="/api/v1", tags=["events"], responses=error_responses(400, 401, 503) | raw_response("text/event-stream")
)

MAX_FOLLOWERS = 500
MIN_INTERVAL_S = 0.25
MAX_INTERVAL_S = 1.0
"""However many followers there are."""
MAX_HINTS_PER_S = 250.0
"""Of all followers together, if `MAX_INTERVAL_S` allows it."""
HEARTBEAT_S = 10.0
_CHECK_S = 1.0  # how often it is checked that the token or the session is still valid
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@router.get("/events", response_class=StreamingResponse)
async def events(
    caller: Reader,
    request: Request,
    session: Session,
    *,
    timeout_s: Annotated[float | None, Query(ge=0, description="end the stream after this time")] = None,
) -> StreamingResponse:
    """Hints that jobs have changed which the caller may see: an event `jobs` with `{"ids": […]}`, or with
    `{"many": true}` for more than 200 jobs at once. They come at most four times a second, and once a second if
    hundreds follow. `hello` is the first event; a comment is sent after about 10 s without a hint. The stream ends when
    the caller's token is revoked or expires."""
    context = caller.context
    if context.job_updates.num_feeds >= MAX_FOLLOWERS:
        raise Overloaded(f"{MAX_FOLLOWERS} browsers follow this controller already", status=503)
    sessions: BrowserSessions = request.app.state.browser_sessions
    owners: JobOwnerCache = request.app.state.job_owners
    hints = _hints(caller, sessions, session, owners, math.inf if timeout_s is None else timeout_s)
    return StreamingResponse(hints, media_type="text/event-stream", headers=_HEADERS)


async def _hints(
    caller: Caller, sessions: BrowserSessions, session: BrowserSession | None, owners: JobOwnerCache, timeout_s: float
) -> AsyncIterator[bytes]:
    """Ends after `timeout_s`, with the session, and when the server stops."""
    loop = asyncio.get_running_loop()
    ends_at, context = loop.time() + timeout_s, caller.context
    silent_since = loop.time()
    with context.job_updates.subscribe_all() as feed:
        yield _event("hello", {"controller": context.controller_id, "started_at": context.started_at})
        while (left_s := ends_at - loop.time()) > 0:
            await feed.wait(min(_CHECK_S, left_s))
            wait_s, interval_s = pace(feed.number, context.job_updates.num_feeds)
            if wait_s:
                await asyncio.sleep(wait_s)
            changed = feed.take()
            if feed.is_closed or not await _goes_on(caller, sessions, session):
                return
            if changed and caller.sees is not None:
                # Nothing is sent for the jobs of others, so that their pace does not show, either.
                changed = frozenset(await owners.owned(changed, caller.sees))
            if changed is None:
                yield _event("jobs", {"many": True})
            elif changed:
                yield _event("jobs", {"ids": sorted(changed)})
            elif loop.time() >= silent_since + HEARTBEAT_S - MIN_INTERVAL_S:
                yield b":\n\n"
            else:
                await asyncio.sleep(interval_s - wait_s)
                continue
            silent_since = loop.time()
            await asyncio.sleep(interval_s - wait_s)


def pace(number: int, followers: int) -> tuple[float, float]:
    """How long the follower with this number waits before a hint, and the shortest time between two, in seconds. A
    follower alone never waits."""
    wanted_s = followers / MAX_HINTS_PER_S
    interval_s = min(max(MIN_INTERVAL_S, wanted_s), MAX_INTERVAL_S)
    return (number % followers) / followers * min(wanted_s, interval_s), interval_s


async def _goes_on(caller: Caller, sessions: BrowserSessions, session: BrowserSession | None) -> bool:
    """Whether the follower may still follow. A caller with a token has no session."""
    if session is None:
        return caller.is_valid()
    await sessions.refresh()
    return sessions.is_valid(session)


def _event(name: str, data: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
