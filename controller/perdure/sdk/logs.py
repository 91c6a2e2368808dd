"""Follows a job's log to its end, across broken connections and restarts, without losing or repeating bytes.

The log is a stream of bytes that only grows. The server sends the offset at which a response starts; after a break, the
next call requests the rest from there.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import IO, Any, cast

from perdure.recovery.statuses import AttemptState, Status
from perdure.sdk.connection import api_types
from perdure.sdk.connection.client import ApiError, Client, ConnectionLost

INITIAL_PAUSE_S = 0.2
MAX_PAUSE_S = 5.0
GIVE_UP_S = 900.0


def follow(
    client: Client,
    job_id: int,
    write: Callable[[bytes], object],
    *,
    task: int | None = None,
    attempt: int | None = None,
    tail: int | None = None,
    on_lost: Callable[[ConnectionLost], None] = lambda _: None,
    give_up_s: float = GIVE_UP_S,
) -> api_types.JobDetail:
    """Write the log as it grows until the job (or its task number `task`) has ended; returns the job as it is then.

    `attempt`: only the log of this attempt, until it has ended. `tail`: start with the last N lines; None starts at the
    beginning. `on_lost` is called once each time the connection is lost. Raises ConnectionLost if the controller does
    not answer for `give_up_s` seconds, ApiError if it rejects.
    """
    offset: int | None = None if tail else 0
    pause_s = INITIAL_PAUSE_S
    lost_at: float | None = None
    ended: api_types.JobDetail | None = None
    while True:
        received = 0
        try:
            last = tail if offset is None else None
            with client.logs(job_id, task=task, attempt=attempt, tail=last, offset=offset) as stream:
                offset, lost_at = stream.offset, None
                for chunk in stream:
                    write(chunk)
                    received += len(chunk)
                    if offset is not None:
                        offset += len(chunk)
            if ended:
                return ended
            job = client.job(job_id)
            if status_of(job, task).is_terminal or _has_ended(job, task, attempt):
                if offset is None:
                    return job
                ended = job  # a stopping controller also ends its streams, so read once more after the job has ended
                continue
        except (ConnectionLost, ApiError) as error:
            if isinstance(error, ApiError) and error.status < 500:
                raise
            lost_at = _lost_since(error, lost_at, on_lost, give_up_s)
        pause_s = INITIAL_PAUSE_S if received else min(pause_s * 2, MAX_PAUSE_S)
        Event().wait(pause_s)


def status_of(job: api_types.JobDetail, task: int | None = None) -> Status:
    """The status of a whole job: that of its first task that has not succeeded. With `task`: that task's."""
    tasks = job.get("tasks") or [job]
    if task is not None:
        return Status(next(one["status"] for one in tasks if one["task_index"] == task))
    statuses = [Status(one["status"]) for one in tasks]
    return next((status for status in statuses if status is not Status.SUCCEEDED), Status.SUCCEEDED)


def _has_ended(job: api_types.JobDetail, task: int | None, attempt: int | None) -> bool:
    """Whether the attempts with this number, of all tasks or of one, have ended. False without a number."""
    states = [
        one["state"]
        for one in job["attempts"]
        if one["generation"] == attempt and (task is None or one["task_index"] == task)
    ]
    return bool(states) and all(state in (AttemptState.STOPPED, AttemptState.GONE) for state in states)


def writer(stream: IO[bytes] | IO[str]) -> Callable[[bytes], object]:
    """A function that writes bytes to `stream` and flushes it. A text stream without a buffer gets decoded text."""
    binary: Any = stream if not hasattr(stream, "encoding") else getattr(stream, "buffer", None)
    if binary is not None:
        stream.flush()

        def write_bytes(chunk: bytes) -> None:
            binary.write(chunk)
            binary.flush()

        return write_bytes
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a chunk may end within a character
    text = cast("IO[str]", stream)

    def write_text(chunk: bytes) -> None:
        text.write(decoder.decode(chunk))
        text.flush()

    return write_text


def _lost_since(
    error: ConnectionLost | ApiError,
    lost_at: float | None,
    on_lost: Callable[[ConnectionLost], None],
    give_up_s: float,
) -> float:
    """When the connection was lost, by the monotonic clock. Raises `error` if that is more than `give_up_s` ago."""
    if lost_at is None:
        on_lost(error if isinstance(error, ConnectionLost) else ConnectionLost(str(error)))
        return monotonic()
    if monotonic() - lost_at > give_up_s:
        raise error
    return lost_at
