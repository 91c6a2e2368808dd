"""Accepts jobs: checks submissions and stores them, many in one transaction. `batching` hands them to the reconciler.

Nothing is written before everything is checked, including the user's quota of jobs that have not ended (the quotas of
machines and of running jobs are in `execute.quotas`). Bad input raises RequestRejected.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import IntegrityError

from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.store import codec
from perdure.controller.store.access import audit, budgets, owners, users
from perdure.controller.store.access.audit import Actor, Deed
from perdure.controller.store.engine.batch_writer import WriteBatch
from perdure.controller.store.queries.usage import count_unfinished
from perdure.controller.store.records import clusters, jobs
from perdure.controller.store.records.clusters import UP
from perdure.controller.store.records.job_claims import Claim, find_claim
from perdure.controller.store.records.jobs import Batch
from perdure.controller.submit.cluster.cluster_tasks import OnCluster
from perdure.controller.submit.cluster.discarded_disks import discard
from perdure.controller.submit.compiler import CompiledJob, Compiler, upload_digests
from perdure.controller.submit.errors import RequestRejected, Superseded
from perdure.controller.submit.job_count import job_count
from perdure.controller.submit.serve.replica_tasks import OfService
from perdure.recovery.actions import TimelineEntry
from perdure.recovery.job import JobView


@dataclass(frozen=True)
class Submission:
    """A request for one job, or for `num_jobs` identical ones."""

    name: str | None  # None: the task's name, or "job"
    configs: Sequence[Mapping[str, Any]]  # one for each task
    user: str
    key: str | None  # the idempotency key: resubmitting with it returns the original job
    num_jobs: int = 1
    retries: Batch | None = None  # launch these ranks of a sweep again
    cluster: OnCluster | None = None  # None: a managed job, or a replica
    service: OfService | None = None  # None: a managed job, or one of a cluster
    actor: Actor | None = None  # who submits it, for the audit log; None: the controller itself
    uploads_of: str | None = None  # the user whose uploads it may use; None: all
    may_run_callbacks: bool = True  # whether an `event_callback`, which runs on the controller's computer, is accepted


@dataclass(frozen=True)
class Accepted:
    """The jobs of an accepted submission."""

    job_ids: tuple[int, ...]  # in the order of their ranks
    name: str
    task_ids: tuple[str, ...]  # those of the first job
    warnings: tuple[str, ...]
    #: Of the jobs to adopt now. A job that was accepted before may have ended, or belong to another controller.
    claims: tuple[Claim, ...]
    views: Mapping[int, JobView] = field(default_factory=dict)  # of the new jobs

    @property
    def job_id(self) -> int:
        """The id of the first job."""
        return self.job_ids[0]


# Of the tasks of all jobs of one launch: they are stored once per job, in one transaction.
MAX_BATCH_BYTES = 64 * 10**6


@dataclass(frozen=True)
class _Checked:
    """A submission that can be stored."""

    submission: Submission
    compiled: CompiledJob
    submitted_at: float  # epoch seconds


@dataclass(frozen=True)
class SubmissionService:
    """Accepts jobs for one controller."""

    database: Engine
    clock: Clock
    compiler: Compiler
    owner: str  # the lease of this controller
    has_upload: Callable[[str, float], bool]  # (digest, now): whether the upload is stored; renews it
    max_jobs_per_user: int | None = None  # counts jobs that have not ended

    def accept(self, submission: Submission) -> Accepted:
        """Store a submission: all of its jobs, or none. Raises RequestRejected, or what the database raises; then
        nothing has changed, as far as is known."""
        (result,) = self.accept_all([submission])
        if isinstance(result, Exception):
            raise result
        return result

    def check(self, submission: Submission) -> tuple[str, ...]:
        """The warnings of a submission. Raises RequestRejected if it could not be accepted now, quotas aside. Stores
        nothing."""
        checked = self._check(submission)
        with self.database.connect() as conn:
            _require_own_uploads(conn, checked)
            _require_budget(users.limits_of(conn, submission.user), self.clock.now())
        return checked.compiled.warnings

    def renew(self, submission: Submission) -> CompiledJob:
        """Renew the uploads of a submission that is made later; what it would be now. Raises RequestRejected."""
        return self._check(submission).compiled

    def accept_all(self, submissions: Sequence[Submission]) -> list[Accepted | Exception]:
        """`accept` for each: the result or the exception, in the same order."""
        checked = [self._capture(self._check, submission) for submission in submissions]
        ready = [item for item in checked if isinstance(item, _Checked)]
        accepted = iter(self._accept_batch(ready))
        return [next(accepted) if isinstance(item, _Checked) else item for item in checked]

    def _capture(self, function: Callable[[Any], Any], argument: Any) -> Any:
        try:
            return function(argument)
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            return error

    def _check(self, submission: Submission) -> _Checked:
        now = self.clock.now()
        _check_size(submission)
        try:
            compiled = self._compile(submission, now)
            return _Checked(_with_size(submission, compiled), compiled, now)
        except RequestRejected:
            # It may have become invalid after it was accepted: its deadline has passed, a channel was removed.
            if (known := self._known(submission)) is None:
                raise
            return _Checked(submission, known, now)

    def _known(self, submission: Submission) -> CompiledJob | None:
        """The job that was accepted with the key of a submission, without its tasks; None if there is none."""
        if submission.key is None:
            return None
        with self.database.connect() as conn:
            job_ids = jobs.find_by_key(conn, submission.key)
            return CompiledJob(jobs.name_of(conn, job_ids[0]), [], 0, ()) if job_ids else None

    def _compile(self, submission: Submission, now: float) -> CompiledJob:
        compiled = self.compiler.compile(submission.name, submission.configs, now)
        if not submission.may_run_callbacks and self.compiler.notify.runs_callbacks:
            require_no_callback(compiled)
        if submission.cluster is not None:
            compiled = submission.cluster.adapt(compiled, self.compiler.clouds_without_ports())
        if submission.service is not None:
            compiled = submission.service.adapt(compiled)
        for digest in {digest for task in compiled.tasks for digest in upload_digests(task.spec)}:
            if not self.has_upload(digest, now):  # the node would wait for it in vain
                raise _no_upload(digest)
        return compiled

    def _accept_batch(self, ready: Sequence[_Checked]) -> Sequence[Accepted | Exception]:
        """Store all in one transaction; if that fails, each in its own."""
        keys = Counter(checked.submission.key for checked in ready if checked.submission.key is not None)
        if len(ready) > 1 and not any(count > 1 for count in keys.values()):
            try:
                return self._record(ready)
            except (RequestRejected, IntegrityError):
                pass  # one of the submissions is the cause: store each on its own
        return [self._capture(self._accept_one, checked) for checked in ready]

    def _accept_one(self, checked: _Checked) -> Accepted:
        try:
            (accepted,) = self._record([checked])
        except IntegrityError:
            # Another controller accepted the same submission a moment ago.
            with self.database.connect() as conn:
                if checked.submission.key is None or not (existing := jobs.find_by_key(conn, checked.submission.key)):
                    raise
                return self._existing(conn, checked, existing, ())
        return accepted

    def _record(self, ready: Sequence[_Checked]) -> list[Accepted]:
        """Raises RequestRejected; IntegrityError if another controller used a key meanwhile; other database errors."""
        with self.database.begin() as conn:
            existing_keys = jobs.known_keys(
                conn, [checked.submission.key for checked in ready if checked.submission.key is not None]
            )
            new = [checked for checked in ready if checked.submission.key not in existing_keys]
            for checked in new:
                _require_own_uploads(conn, checked)
            columns = [self._columns(conn, checked) for checked in new]
            counts = [checked.submission.retries or checked.submission.num_jobs for checked in new]
            ids = jobs.insert_batches(conn, list(zip(columns, counts, strict=True)))
            self._check_quota(conn, [checked.submission for checked in new])
            writes = WriteBatch(conn)
            numbers = [row["cluster_job"] for row in columns]
            created = iter([self._write(writes, *one) for one in zip(new, ids, numbers, strict=True)])
            results = []
            for checked in ready:
                if checked.submission.key in existing_keys:
                    existing = jobs.find_by_key(conn, checked.submission.key or "")
                    # The controller may have stopped before it adopted the job: then it is adopted now.
                    claims = tuple(claim for id in existing if (claim := find_claim(conn, id, self.owner)))
                    results.append(self._existing(conn, checked, existing, claims))
                else:
                    results.append(next(created))
            writes.flush()
            if new:
                failpoint("job.accepting")
        if new:
            failpoint("job.accepted")
        return results

    def _existing(
        self, conn: Connection, checked: _Checked, job_ids: Sequence[int], claims: tuple[Claim, ...]
    ) -> Accepted:
        compiled = checked.compiled
        return Accepted(tuple(job_ids), compiled.name, jobs.task_ids(conn, job_ids[0]), compiled.warnings, claims)

    def _columns(self, conn: Connection, checked: _Checked) -> dict[str, Any]:
        cluster, service = checked.submission.cluster, checked.submission.service
        return {
            "name": checked.compiled.name,
            "user": checked.submission.user,
            "priority": checked.compiled.priority,
            "num_tasks": len(checked.compiled.tasks),
            "submitted_at": checked.submitted_at,
            "idempotency_key": checked.submission.key,
            "owner": self.owner,
            "service_id": service.service_id if service else None,
            "cluster_id": cluster.cluster_id if cluster else None,
            "cluster_job": _enter(conn, cluster) if cluster else None,
        }

    def _write(
        self, writes: WriteBatch, checked: _Checked, job_ids: Sequence[int], cluster_job: int | None
    ) -> Accepted:
        tasks, name = checked.compiled.tasks, checked.compiled.name
        cluster, count = checked.submission.cluster, len(tasks)
        task_ids = {
            id: [_task_id(checked.submitted_at, name, task.name, id, i, count) for i, task in enumerate(tasks)]
            for id in job_ids
        }
        if cluster is not None and cluster_job is not None:
            task_ids = {id: [_cluster_task_id(checked.submitted_at, cluster.name, cluster_job)] for id in job_ids}
        jobs.add_tasks(writes, tasks, task_ids)
        note = TimelineEntry("job.submitted", data={"tasks": count, "user": checked.submission.user})
        for id in job_ids:
            jobs.append_timeline(writes, id, [note], checked.submitted_at)
        if (actor := checked.submission.actor) is not None:
            detail = {"name": name, "user": checked.submission.user, "num_jobs": len(job_ids)}
            deed = Deed(actor, "job.submit", f"job {job_ids[0]}", detail=detail)
            writes.add(audit.INSERT, deed.row(checked.submitted_at))
        views = tuple(codec.interned(task.view) for task in tasks)
        return Accepted(
            tuple(job_ids),
            name,
            tuple(task_ids[job_ids[0]]),
            checked.compiled.warnings,
            tuple(Claim(id, self.owner, 1) for id in job_ids),
            {id: JobView(id, views) for id in job_ids},
        )

    def _check_quota(self, conn: Connection, submissions: Sequence[Submission]) -> None:
        """Raises RequestRejected if a user would have too many jobs. The new jobs have rows already, but no tasks."""
        for user in sorted({submission.user for submission in submissions}):  # in this order: each count takes a lock
            limits = users.limits_of(conn, user)
            _require_budget(limits, self.clock.now())
            limit, setting = self.max_jobs_per_user, "limits.max_jobs_per_user in config.yaml"
            if limits.get("max_jobs") is not None:
                limit, setting = limits["max_jobs"], f"it: perdure users update {user} --max-jobs N"
            if limit is None:
                continue
            unfinished = count_unfinished(conn, user)
            for submission in submissions:
                if submission.user == user:
                    _reject_over_quota(limit, setting, submission, unfinished)
                    unfinished += submission.num_jobs


def _require_own_uploads(conn: Connection, checked: _Checked) -> None:
    """Raises RequestRejected for an upload that the user has not sent: as for one that nobody has."""
    user = checked.submission.uploads_of
    if user is None:
        return
    digests = {digest for task in checked.compiled.tasks for digest in upload_digests(task.spec)}
    for digest in sorted(digests - owners.owned_uploads(conn, digests, user)):
        raise _no_upload(digest)


def require_no_callback(compiled: CompiledJob) -> None:
    """Raises RequestRejected for a task with a callback: it would run as the controller, and could read every token."""
    if any(task.spec.get("event_callback") for task in compiled.tasks):
        raise RequestRejected(
            "event_callback runs on the controller's computer, which only administrators may use",
            where="tasks",
            fix="use `notify` with a channel instead",
            status=403,
        )


def _require_budget(limits: Mapping[str, Any], now: float) -> None:
    """Raises RequestRejected if the user's budget for this month is spent. `maintenance.budgets` finds that out."""
    month = budgets.month_of(now)
    if limits.get("budget_usd") is not None and limits["spent_month"] == month:
        message = f"{limits['name']} has spent the budget of {limits['budget_usd']:g} USD for {month}"
        fix = "wait for the next month, or have an administrator raise it: perdure users set-budget"
        raise RequestRejected(message, where="user", fix=fix, status=429)


def _no_upload(digest: str) -> RequestRejected:
    fix = "upload it before you submit the job"
    return RequestRejected(f"there is no upload {digest[:12]}…", where="tasks", fix=fix)


def _enter(conn: Connection, cluster: OnCluster) -> int | None:
    """The number of a new job on its cluster; None for a job that holds machines. Locks the cluster.

    Raises RequestRejected if the cluster does not want it any more.
    """
    if not cluster.is_job:
        row = clusters.lock(conn, cluster.cluster_id)
        if row is None or (row.wanted, row.starts) != (UP, cluster.starts):
            raise Superseded(f"the cluster {cluster.name} was changed meanwhile", fix="try again", status=409)
        if cluster.discards_disks:
            discard(conn, cluster.cluster_id)
        return None
    number, wanted = clusters.take_number(conn, cluster.cluster_id)
    if cluster.needs_up and wanted != UP:
        raise is_stopped(cluster.name)
    return number


def is_stopped(cluster: str) -> RequestRejected:
    return RequestRejected(f"the cluster {cluster} is stopped", fix=f"start it: perdure start {cluster}", status=409)


def _with_size(submission: Submission, compiled: CompiledJob) -> Submission:
    """The submission with as many jobs as its grid has combinations. Raises RequestRejected."""
    if submission.retries is not None:
        return submission
    count = job_count(compiled, submission.num_jobs, on_cluster=submission.cluster is not None)
    if not any(task.spec.get("sweep") for task in compiled.tasks):
        return submission
    submission = replace(submission, num_jobs=count)
    _check_size(submission)
    return submission


def _check_size(submission: Submission) -> None:
    """Raises RequestRejected if the rows of all jobs together, each with its own copy of the tasks, are too large."""
    if submission.num_jobs == 1:
        return  # the body of the request is limited
    size = len(json.dumps(submission.configs))
    total = size * submission.num_jobs
    if total > MAX_BATCH_BYTES:
        raise RequestRejected(
            f"{submission.num_jobs} jobs with {size / 1000:,.0f} kB of tasks each are {total / 1e6:,.0f} MB; "
            f"one launch may have {MAX_BATCH_BYTES / 1e6:.0f} MB",
            where="num_jobs",
            fix="launch fewer jobs at a time, or move large values into files (workdir, file_mounts)",
        )


def _reject_over_quota(limit: int, setting: str, submission: Submission, unfinished: int) -> None:
    if unfinished + submission.num_jobs <= limit:
        return
    more = f"{submission.num_jobs} more" if submission.num_jobs > 1 else "one more"
    raise RequestRejected(
        f"{submission.user or 'this user'} has {unfinished} jobs that have not ended; with {more} there would be over "
        f"{limit}",
        where="user",
        fix=f"wait until some have ended, cancel some, or raise {setting}",
        status=429,
    )


def _task_id(now: float, job: str, task: str, job_id: int, index: int, count: int) -> str:
    """SKYPILOT_TASK_ID: made here once, and the same in every attempt."""
    middle = f"{job}_{task}" if count > 1 else job
    return f"sky-managed-{_stamp(now)}_{middle}_{job_id}-{index}"


def _cluster_task_id(now: float, cluster: str, number: int) -> str:
    """SKYPILOT_TASK_ID of a job of a cluster."""
    return f"sky-{_stamp(now)}_{cluster}_{number}"


def _stamp(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d-%H-%M-%S-%f")
