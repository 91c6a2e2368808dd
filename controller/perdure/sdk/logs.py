"""Follows a job's log to its end, across broken connections and restarted controllers: no byte lost, none repeated.

The log is one stream of bytes that only grows. The server says where in it an answer begins; after a break the next
call asks for the rest from there.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from time import monotonic

from perdure.recovery.statuses import Status
from perdure.sdk import records
from perdure.sdk.client import ApiError, Client, ConnectionLost

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
GIVE_UP_S = 900.0


def follow(
    client: Client,
    job_id: int,
    write: Callable[[bytes], object],
    *,
    task: int | None = None,
    tail: int | None = None,
    on_lost: Callable[[ConnectionLost], None] = lambda _: None,
    give_up_s: float = GIVE_UP_S,
) -> records.JobDetail:
    """Write the log as it comes until the job (or its task number `task`) has ended; returns the job as it is then.

    `tail`: begin with the last so many lines; None begins at the beginning. `on_lost` is called once for each time that
    the controller is lost. Raises `ConnectionLost` when it stays away for `give_up_s` seconds, `ApiError` if refused.
    """
    offset: int | None = None if tail else 0
    pause_s = FIRST_PAUSE_S
    lost_at: float | None = None
    ended: records.JobDetail | None = None
    while True:
        received = 0
        try:
            with client.logs(job_id, task=task, tail=tail if offset is None else None, offset=offset) as stream:
                offset, lost_at = stream.offset, None
                for chunk in stream:
                    write(chunk)
                    received += len(chunk)
                    if offset is not None:
                        offset += len(chunk)
            if ended:
                return ended
            job = client.job(job_id)
            if status_of(job, task).is_terminal:
                if offset is None:
                    return job
                ended = job  # a controller that stops ends its streams too: read once more, now that the job has ended
                continue
        except (ConnectionLost, ApiError) as error:
            if isinstance(error, ApiError) and error.status < 500:
                raise
            lost_at = _lost(error, lost_at, on_lost, give_up_s)
        pause_s = FIRST_PAUSE_S if received else min(pause_s * 2, LONGEST_PAUSE_S)
        Event().wait(pause_s)


def status_of(job: records.JobDetail, task: int | None = None) -> Status:
    """The status of a whole job: that of its first task that has not succeeded. With `task`: that task's."""
    tasks = job.get("tasks") or [job]
    if task is not None:
        return Status(next(one["status"] for one in tasks if one["task_index"] == task))
    statuses = [Status(one["status"]) for one in tasks]
    return next((status for status in statuses if status is not Status.SUCCEEDED), Status.SUCCEEDED)


def _lost(
    error: ConnectionLost | ApiError,
    lost_at: float | None,
    on_lost: Callable[[ConnectionLost], None],
    give_up_s: float,
) -> float:
    """Since when the controller is lost. Raises `error` once that is too long ago."""
    if lost_at is None:
        on_lost(error if isinstance(error, ConnectionLost) else ConnectionLost(str(error)))
        return monotonic()
    if monotonic() - lost_at > give_up_s:
        raise error
    return lost_at
