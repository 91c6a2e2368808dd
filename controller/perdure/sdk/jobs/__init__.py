"""Launches and manages jobs: the functions of `perdure jobs …` for scripts.

    import perdure.sdk as perdure

    launched = perdure.jobs.launch(perdure.Task.from_yaml("train.yaml"))
    exit_code = perdure.jobs.tail_logs(launched.job_id)

Every function takes `client`. By default it uses the controller that the environment names, or the embedded one, which
it starts if necessary. All raise ApiError (the controller rejected the call), ConnectionLost or NoController.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import monotonic
from typing import IO, TYPE_CHECKING, Any

from perdure.recovery.statuses import EXIT_NOT_FOUND, exit_code
from perdure.sdk import logs
from perdure.sdk.connection import api_types, discovery
from perdure.sdk.connection.client import ApiError, Client, ConnectionLost, user_name
from perdure.sdk.connection.users import ownership
from perdure.sdk.files.downloads import folder_name, replacing, whole_number
from perdure.sdk.spec.problems import Problem, TaskError

if TYPE_CHECKING:
    from perdure.sdk.dag import Dag
    from perdure.sdk.files.uploads import PackedTasks, UploadProgress
    from perdure.sdk.task import Task

WAIT_POLL_S = 1.0
DOWNLOAD_DIR = "~/perdure_logs"
MAX_IDS = 10_000  # the controller's limit for one call
MAX_NAME_CHARS = 200  # the controller's limit


class JobNotFound(ApiError):
    """The job does not exist."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=404, fix="list all jobs: perdure jobs queue --all")


@dataclass(frozen=True)
class LaunchResult:
    """The launched job, or the first job of a batch."""

    job_id: int
    name: str
    task_ids: tuple[str, ...]  # the SKYPILOT_TASK_ID of every task, the same in all of its attempts
    warnings: tuple[str, ...] = ()
    job_ids: tuple[int, ...] = ()  # of all jobs of the batch, in the order of SKYPILOT_JOB_RANK


@dataclass(frozen=True)
class PreparedJob:
    """A job that is packed and ready to be planned or submitted, inside the block of `prepare` only."""

    name: str | None
    packed: PackedTasks
    warnings: tuple[str, ...]
    stated: frozenset[tuple[str, str, str]] = frozenset()  # what `warnings` are about, as `_subject` returns it

    def plan(self, client: Client, *, forecast: bool = False, num_jobs: int = 1) -> api_types.Plan:
        """The offers that a launch would try, in order, and all warnings. Changes nothing. `forecast`: as in `plan`."""
        several = num_jobs if num_jobs > 1 else None  # older controllers do not know it
        planned = client.plan(self.name, self.packed.tasks, forecast=forecast, num_jobs=several)
        return {**planned, "warnings": list(self._with_new(planned["warnings"]))}

    def send(self, client: Client, *, on_message: Callable[[str], None], progress: UploadProgress) -> None:
        """Upload the files that the controller lacks. `on_message` receives a line before each upload."""
        from perdure.sdk.files import uploads

        uploads.send(client, self.packed.archives, on_message=on_message, progress=progress)

    def submit(self, client: Client, *, key: str, user: str, num_jobs: int = 1) -> LaunchResult:
        """Submit the job after its files were uploaded. Exactly one job is created, even if the connection breaks."""
        submitted = client.submit(self.name, self.packed.tasks, user=user, key=key, num_jobs=num_jobs)
        warnings = self._with_new(submitted["warnings"])
        ids = tuple(submitted["job_ids"])
        return LaunchResult(submitted["job_id"], submitted["name"], tuple(submitted["task_ids"]), warnings, ids)

    def _with_new(self, warnings: Sequence[str]) -> tuple[str, ...]:
        """The job's own warnings, and those of the controller that it does not repeat without a line."""
        return (*self.warnings, *(text for text in warnings if _subject(text) not in self.stated))


def launch(
    task_or_dag: Task | Dag,
    name: str | None = None,
    *,
    num_jobs: int = 1,
    key: str | None = None,
    user: str | None = None,
    ignore: Collection[str] = (),
    client: Client | None = None,
) -> LaunchResult:
    """Upload local files and submit a task or a pipeline. Returns as soon as the controller has stored the job.

    `num_jobs`: launch N identical jobs; SKYPILOT_JOB_RANK (from 0) and SKYPILOT_NUM_JOBS distinguish them. `name`
    replaces the job's own. Submitting with the same `key` again returns the original job; by default every call
    creates a new job. `ignore`: fields such as `volumes` that a launch is otherwise refused for, since results could be
    lost or something else would run. Raises TaskError or UploadError before anything is sent.
    """
    with prepare(task_or_dag, name, ignore=ignore) as job:
        from perdure.sdk.files.uploads import no_progress

        client = client or _client()
        job.send(client, on_message=lambda _: None, progress=no_progress)
        return job.submit(client, key=key or new_key(), user=user or user_name(), num_jobs=num_jobs)


def plan(
    task_or_dag: Task | Dag,
    name: str | None = None,
    *,
    forecast: bool = False,
    ignore: Collection[str] = (),
    client: Client | None = None,
) -> api_types.Plan:
    """The offers that a launch would try, in order, with their prices. Changes nothing.

    `forecast`: also estimate the total cost and the running time of each task. `ignore`: as in `launch`.
    """
    with prepare(task_or_dag, name, ignore=ignore) as job:
        return job.plan(client or _client(), forecast=forecast)


@contextlib.contextmanager
def prepare(
    task_or_dag: Task | Dag,
    name: str | None = None,
    *,
    ignore: Collection[str] = (),
    kept: Collection[str] = (),
    on_read: Callable[[int], object] = lambda _: None,
) -> Iterator[PreparedJob]:
    """Pack a job's local files into a temporary folder that lives as long as the block.

    `on_read` receives the size of each block that is read from them. `kept`: unsupported fields that are sent anyway.

    Raises TaskError for a local path that does not exist or an unsupported field that is not in `ignore`, UploadError
    for a path that cannot be read.
    """
    from perdure.sdk.dag import Dag
    from perdure.sdk.files import uploads

    job_name = name or task_or_dag.name
    if job_name and len(job_name) > MAX_NAME_CHARS:
        raise TaskError([Problem("name", f"has {len(job_name)} characters", f"give one of at most {MAX_NAME_CHARS}")])
    task_or_dag = task_or_dag.ignoring(ignore)
    tasks = task_or_dag.tasks if isinstance(task_or_dag, Dag) else [task_or_dag]
    unsupported = [field for task in tasks for field in task.unsupported if field.option not in kept]
    if problems := [*unsupported, *(problem for task in tasks for problem in task.check_local_paths())]:
        raise TaskError(problems)
    with uploads.pack_tasks([task.to_yaml_config() for task in tasks], on_read) as packed:
        stated = frozenset(warning.subject for task in tasks for warning in task.warning_details)
        yield PreparedJob(job_name, packed, (*task_or_dag.warnings, *packed.warnings), stated)


def queue(
    *,
    job_ids: Sequence[int] | None = None,
    name: str | None = None,
    statuses: Sequence[str] = (),
    skip_finished: bool = False,
    limit: int | None = 50,
    before: int | None = None,
    refresh: bool = False,  # noqa: ARG001 - the controller is always up to date
    client: Client | None = None,
) -> api_types.JobPage:
    """Jobs, newest first: one record per task. `job_ids`: only these, so none if it is empty. `name`: a whole name, or
    a pattern with `*`, `?` or `[a-z]`. `before`: only job IDs below it, for the next page. `refresh`: no effect."""
    return (client or _client()).jobs(
        limit=limit, skip_finished=skip_finished, statuses=statuses, name=name, ids=job_ids, before=before
    )


def iter_all(
    *, name: str | None = None, statuses: Sequence[str] = (), skip_finished: bool = False, client: Client | None = None
) -> Iterator[api_types.Job]:
    """All jobs, newest first: one record per task; `name` as in `queue`. Pages are fetched one ahead, so at most two
    pages are in memory."""
    for page in (client or _client()).job_pages(skip_finished=skip_finished, statuses=statuses, name=name):
        yield from page["jobs"]


def get(job_id: int, *, client: Client | None = None) -> api_types.JobDetail:
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
    all: bool = False,  # the name in the API
    all_users: bool = False,
    graceful: bool = True,
    grace_s: float | None = None,
    client: Client | None = None,
) -> api_types.Cancelled:
    """End jobs: by id, by name, all of this user, or those of all users. Raises ValueError unless one is given.

    No IDs (`[]`) end no job; an empty `name` raises ValueError.

    Graceful: each may save and flush for `grace_s` seconds (None: its default).
    """
    if [job_ids is not None, name is not None, all or all_users].count(True) != 1:
        raise ValueError("give exactly one of job_ids, name, all and all_users")
    if name == "":
        raise ValueError("the name is empty")
    ids = [job_ids] if isinstance(job_ids, int) else job_ids
    client = client or _client()
    if all and not all_users:
        ids = list(unfinished(users=ownership(client).names, client=client))
    cancelled: api_types.Cancelled = {"cancelled": [], "finished": [], "unknown": []}
    # A call accepts so many ids.
    for some in [None] if ids is None else [ids[at : at + MAX_IDS] for at in range(0, len(ids), MAX_IDS)]:
        part = client.cancel(ids=some, name=name, everything=all_users, graceful=graceful, grace_s=grace_s)
        cancelled["cancelled"] += part["cancelled"]
        cancelled["finished"] += part["finished"]
        cancelled["unknown"] += part["unknown"]
    return cancelled


def unfinished_ids(*, name: str | None = None, user: str | None = None, client: Client | None = None) -> list[int]:
    """The IDs of the jobs that have not ended, newest first. `name`: a name or a pattern; `user`: only that user's."""
    return list(unfinished(name=name, users=None if user is None else [user], client=client))


def unfinished(
    *, name: str | None = None, users: Collection[str] | None = None, client: Client | None = None
) -> dict[int, str]:
    """The IDs of the jobs that have not ended, newest first, with their users. `users`: only theirs."""
    jobs = iter_all(name=name, skip_finished=True, client=client)
    return {job["job_id"]: job["user"] for job in jobs if users is None or job["user"] in users}


def preempt(
    job_id: int, *, node: int = 0, notice_s: float | None = None, client: Client | None = None
) -> api_types.Preempted:
    """Simulate a preemption: take a node away with `notice_s` seconds of notice, or without notice if None."""
    return (client or _client()).preempt(job_id, node=node, notice_s=notice_s)


def tail_logs(
    job_id: int | None = None,
    name: str | None = None,
    *,
    task: int | None = None,
    attempt: int | None = None,
    follow: bool = True,
    tail: int | None = None,
    output_stream: IO[bytes] | IO[str] | None = None,
    on_lost: Callable[[ConnectionLost], None] = lambda _: None,
    client: Client | None = None,
) -> int:
    """Write a job's log to `output_stream` (stdout by default); with `follow`, until the job ends, across recoveries.

    Without `job_id`: the newest job, or the newest of that `name`. `attempt`: only the log of that attempt; to follow
    it ends with the attempt. `tail`: only the last N lines. Returns the job's exit code: 0 succeeded, 100 failed,
    101 not finished, 102 no such job or attempt, 103 cancelled.
    """
    client = client or _client()
    write = logs.writer(output_stream or sys.stdout)
    try:
        if job_id is None:
            job_id = newest(name, client=client)
        if follow:
            job = logs.follow(client, job_id, write, task=task, attempt=attempt, tail=tail, on_lost=on_lost)
        else:
            with client.logs(job_id, task=task, attempt=attempt, follow=False, tail=tail) as stream:
                for chunk in stream:
                    write(chunk)
            job = client.job(job_id)
    except ApiError as error:
        if error.status == 404:
            return EXIT_NOT_FOUND
        raise
    return exit_code(logs.status_of(job, task))


def download_logs(
    job_id: int | None = None,
    name: str | None = None,
    *,
    local_dir: str | os.PathLike[str] = DOWNLOAD_DIR,
    client: Client | None = None,
) -> Path:
    """Write the logs that a job has so far to files, one for each task. Returns the folder that holds them.

    Without `job_id`: those of the newest job, or of the newest of that `name`. Replaces each file of an earlier
    download once the new one is complete. Raises JobNotFound; OSError for a folder that cannot be written.
    """
    client = client or _client()
    job = get(newest(name, client=client) if job_id is None else job_id, client=client)
    folder = download_folder(job, local_dir)
    folder.mkdir(parents=True, exist_ok=True)
    tasks = job.get("tasks") or [job]
    for task in tasks:
        index = whole_number(task["task_index"]) if len(tasks) > 1 else None
        with (
            client.logs(job["job_id"], task=index, follow=False) as stream,
            replacing(folder / ("run.log" if index is None else f"run-{index}.log")) as file,
        ):
            for chunk in stream:
                file.write(chunk)
    return folder


def download_folder(job: api_types.Job, local_dir: str | os.PathLike[str] = DOWNLOAD_DIR) -> Path:
    """The folder of a job's downloaded logs: `<local_dir>/<job ID>-<name>`."""
    return Path(local_dir).expanduser() / folder_name(job["job_id"], job["name"])


def wait(
    job_id: int,
    *,
    timeout_s: float | None = None,
    poll_s: float = WAIT_POLL_S,
    client: Client | None = None,
) -> int:
    """Wait for a job's end. Returns its exit code, or 101 (not finished) after `timeout_s`. Raises JobNotFound."""
    client = client or _client()
    give_up_at = None if timeout_s is None else monotonic() + timeout_s
    while True:
        status = logs.status_of(get(job_id, client=client))
        if status.is_terminal or (give_up_at is not None and monotonic() >= give_up_at):
            return exit_code(status)
        Event().wait(poll_s if give_up_at is None else max(0.0, min(poll_s, give_up_at - monotonic())))


def newest(name: str | None = None, *, client: Client | None = None) -> int:
    """The ID of the newest job, or of the newest of that name. Raises JobNotFound."""
    newest_first = (client or _client()).jobs(limit=1, name=name)["jobs"]
    if not newest_first:
        raise JobNotFound(f"there is no job named {name!r}" if name else "there are no jobs yet")
    return newest_first[0]["job_id"]


def new_key() -> str:
    """A key that makes one submission safe to repeat."""
    return os.urandom(16).hex()


def _subject(warning: str) -> tuple[str, str, str]:
    """`Problem.subject` of a warning of the controller, which has no place."""
    field, _, message = warning.partition(": ")
    return Problem(field, message).subject


def _client() -> Client:
    return Client(discovery.ensure())


# Names of SkyPilot's `sky.jobs` that do not exist here → what to use.
_ELSEWHERE = {
    "queue_v2": "use queue, or iter_all for all jobs",
    "dashboard": "run `perdure jobs queue --watch`",
    **dict.fromkeys(
        ("pool_apply", "pool_down", "pool_status", "pool_tail_logs"),
        "pools are not supported: launch(task, num_jobs=N) launches N jobs",
    ),
}


if not TYPE_CHECKING:  # for a type checker, a name that does not exist is an error

    def __getattr__(name: str) -> Any:
        hint = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        message = f"module {__name__!r} has no attribute {name!r}{hint}"
        raise AttributeError(message, name=name, obj=sys.modules[__name__])
