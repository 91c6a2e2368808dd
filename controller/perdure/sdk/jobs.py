"""Launch jobs and look after them: what `perdure jobs …` does, for scripts.

    import perdure.sdk as perdure

    launched = perdure.jobs.launch(perdure.Task.from_yaml("train.yaml"))
    exit_code = perdure.jobs.tail_logs(launched.job_id)

Every function takes `client`; without it the controller of the environment is used, and the embedded one is started if
it does not run. All raise `ApiError` (the controller refused), `ConnectionLost` or `NoController`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import IO, TYPE_CHECKING, Any, cast

from perdure.recovery.statuses import EXIT_NOT_FOUND, exit_code
from perdure.sdk import endpoint, logs, records
from perdure.sdk.client import ApiError, Client, ConnectionLost, user_name

if TYPE_CHECKING:
    from perdure.sdk.dag import Dag
    from perdure.sdk.task import Task
    from perdure.sdk.uploads import Packed, Sending

WAIT_POLL_S = 1.0


class JobNotFound(ApiError):
    """There is no such job."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=404, fix="see what there is: perdure jobs queue --all")


@dataclass(frozen=True)
class LaunchResult:
    """What became of a launch. `task_ids`: the SKYPILOT_TASK_ID of every task, the same in all of its attempts.

    Of a batch, `job_ids` are in the order of SKYPILOT_JOB_RANK; `job_id` and `task_ids` are the first one's.
    """

    job_id: int
    name: str
    task_ids: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    job_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """A job that is packed and ready to be planned or submitted, inside the block of `prepared` only."""

    name: str | None
    packed: Packed
    warnings: tuple[str, ...]

    def plan(self, client: Client, *, forecast: bool = False) -> records.Plan:
        """What would be tried, in order. Sends no files and changes nothing. `forecast`: and what will come of it."""
        return client.plan(self.name, self.packed.tasks, forecast=forecast)

    def send(self, client: Client, *, say: Callable[[str], None], sending: Sending) -> None:
        """Send the files that the controller lacks."""
        from perdure.sdk import uploads

        uploads.send(client, self.packed.archives, say=say, sending=sending)

    def submit(self, client: Client, *, key: str, user: str, num_jobs: int = 1) -> LaunchResult:
        """Hand in the job, whose files were sent: once, however often the connection breaks."""
        answer = client.submit(self.name, self.packed.tasks, user=user, key=key, num_jobs=num_jobs)
        warnings = (*self.warnings, *(w for w in answer["warnings"] if w not in self.warnings))
        ids = tuple(answer["job_ids"])
        return LaunchResult(answer["job_id"], answer["name"], tuple(answer["task_ids"]), warnings, ids)


def launch(
    task_or_dag: Task | Dag,
    name: str | None = None,
    *,
    num_jobs: int = 1,
    key: str | None = None,
    user: str | None = None,
    client: Client | None = None,
) -> LaunchResult:
    """Hand in a task, or a pipeline of them; returns as soon as the controller has it. Uploads local files first.

    `num_jobs`: so many jobs of it, told apart by SKYPILOT_JOB_RANK (from 0) of SKYPILOT_NUM_JOBS. `name` replaces the
    job's own. A repeated `key` returns the first job instead of a second one; by default every call is a new job.
    Raises `TaskError` or `UploadError` before anything is sent.
    """
    with prepared(task_or_dag, name) as job:
        from perdure.sdk.uploads import unseen

        client = client or _client()
        job.send(client, say=lambda _: None, sending=unseen)
        return job.submit(client, key=key or new_key(), user=user or user_name(), num_jobs=num_jobs)


def plan(
    task_or_dag: Task | Dag, name: str | None = None, *, forecast: bool = False, client: Client | None = None
) -> records.Plan:
    """What a launch would try, in order, and what an hour would cost. Changes nothing.

    `forecast`: each task's `forecast` tells what it will most likely cost in all, and when it will be done.
    """
    with prepared(task_or_dag, name) as job:
        return job.plan(client or _client(), forecast=forecast)


@contextlib.contextmanager
def prepared(task_or_dag: Task | Dag, name: str | None = None) -> Iterator[Prepared]:
    """Pack a job's local files into a temporary folder that lives as long as the block.

    Raises `TaskError` for a local path that is not there, `UploadError` for one that can not be read.
    """
    from perdure.sdk import uploads
    from perdure.sdk.dag import Dag
    from perdure.sdk.problems import TaskError

    tasks = task_or_dag.tasks if isinstance(task_or_dag, Dag) else [task_or_dag]
    if problems := [problem for task in tasks for problem in task.check_local_paths()]:
        raise TaskError(problems)
    with uploads.pack_tasks([task.to_yaml_config() for task in tasks]) as packed:
        yield Prepared(name or task_or_dag.name, packed, (*task_or_dag.warnings, *packed.warnings))


def queue(
    *,
    job_ids: Sequence[int] = (),
    name: str | None = None,
    statuses: Sequence[str] = (),
    skip_finished: bool = False,
    limit: int | None = 50,
    before: int | None = None,
    client: Client | None = None,
) -> records.JobPage:
    """Jobs, newest first: one record per task. `name`: a whole name, or a pattern with `*`, `?` or `[a-z]`. `before`:
    only job ids below it, for the next page."""
    return (client or _client()).jobs(
        limit=limit, skip_finished=skip_finished, statuses=statuses, name=name, ids=job_ids, before=before
    )


def every(
    *, name: str | None = None, statuses: Sequence[str] = (), skip_finished: bool = False, client: Client | None = None
) -> Iterator[records.Job]:
    """Every job, newest first: one record per task; `name` as in `queue`. They are fetched page by page, one page
    ahead, so a million of them take no more memory than two pages."""
    for page in (client or _client()).job_pages(skip_finished=skip_finished, statuses=statuses, name=name):
        yield from page["jobs"]


def get(job_id: int, *, client: Client | None = None) -> records.JobDetail:
    """A job with its tasks, attempts and timeline. Raises `JobNotFound`."""
    client = client or _client()
    try:
        return client.job(job_id)
    except ApiError as error:
        if error.status == 404:
            raise JobNotFound(f"there is no job {job_id}") from error
        raise


def cancel(
    job_ids: Sequence[int] | int | None = None,
    *,
    name: str | None = None,
    all: bool = False,  # the API's word
    graceful: bool = True,
    grace_s: float | None = None,
    client: Client | None = None,
) -> records.Cancelled:
    """End jobs: by id, by name, or all. Graceful: each may save and flush for `grace_s` seconds (None: its default)."""
    ids = [job_ids] if isinstance(job_ids, int) else job_ids
    client = client or _client()
    return client.cancel(ids=ids, name=name, everything=all, graceful=graceful, grace_s=grace_s)


def preempt(
    job_id: int, *, node: int = 0, notice_s: float | None = None, client: Client | None = None
) -> records.Preempted:
    """Rehearse an interruption: take a node away with `notice_s` seconds of notice, or at once when None."""
    return (client or _client()).preempt(job_id, node=node, notice_s=notice_s)


def tail_logs(
    job_id: int | None = None,
    name: str | None = None,
    *,
    task: int | None = None,
    follow: bool = True,
    tail: int | None = None,
    output_stream: IO[bytes] | IO[str] | None = None,
    on_lost: Callable[[ConnectionLost], None] = lambda _: None,
    client: Client | None = None,
) -> int:
    """Write a job's log to `output_stream` (stdout by default); following, until the job ends, through every recovery.

    Without `job_id`: the newest job, or the newest of that `name`. `tail`: only the last so many lines. Returns the
    job's exit code: 0 succeeded, 100 failed, 101 not finished, 102 no such job, 103 cancelled.
    """
    client = client or _client()
    write = _writer(output_stream or sys.stdout)
    try:
        if job_id is None:
            job_id = newest(name, client=client)
        if follow:
            job = logs.follow(client, job_id, write, task=task, tail=tail, on_lost=on_lost)
        else:
            with client.logs(job_id, task=task, follow=False, tail=tail) as stream:
                for chunk in stream:
                    write(chunk)
            job = client.job(job_id)
    except ApiError as error:
        if error.status == 404:
            return EXIT_NOT_FOUND
        raise
    return exit_code(logs.status_of(job, task))


def wait(
    job_id: int,
    *,
    timeout_s: float | None = None,
    poll_s: float = WAIT_POLL_S,
    client: Client | None = None,
) -> int:
    """Wait for a job's end. Returns its exit code, or 101 (not finished) once `timeout_s` is over; `JobNotFound`."""
    client = client or _client()
    give_up_at = None if timeout_s is None else monotonic() + timeout_s
    while True:
        status = logs.status_of(get(job_id, client=client))
        if status.is_terminal or (give_up_at is not None and monotonic() >= give_up_at):
            return exit_code(status)
        Event().wait(poll_s if give_up_at is None else max(0.0, min(poll_s, give_up_at - monotonic())))


def newest(name: str | None = None, *, client: Client | None = None) -> int:
    """The id of the newest job, or of the newest of that name. Raises `JobNotFound`."""
    found = (client or _client()).jobs(limit=1, name=name)["jobs"]
    if not found:
        raise JobNotFound(f"there is no job named {name!r}" if name else "there are no jobs yet")
    return found[0]["job_id"]


def new_key() -> str:
    """A key that makes one submission safe to repeat."""
    return os.urandom(16).hex()


def _client() -> Client:
    return Client(endpoint.ensure())


def _writer(stream: IO[bytes] | IO[str]) -> Callable[[bytes], object]:
    """How to write bytes to `stream`: at once, and as they are wherever it has a binary side."""
    binary: Any = stream if not hasattr(stream, "encoding") else getattr(stream, "buffer", None)
    if binary is not None:
        stream.flush()

        def write_bytes(chunk: bytes) -> None:
            binary.write(chunk)
            binary.flush()

        return write_bytes
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may come in two halves
    text = cast("IO[str]", stream)

    def write_text(chunk: bytes) -> None:
        text.write(decoder.decode(chunk))
        text.flush()

    return write_text
