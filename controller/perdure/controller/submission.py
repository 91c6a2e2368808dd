"""How jobs are accepted and made durable: those that come in at the same time, in one transaction.

Nothing is written before everything was checked. A refusal is a `Refused`: what is wrong, where, and what to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import IntegrityError

from perdure.controller import planning
from perdure.controller.clock import Clock
from perdure.controller.compiling import Compiled, Compiler, uploads_of
from perdure.controller.crashpoints import reach
from perdure.controller.keyring import Keyring
from perdure.controller.market import Market
from perdure.controller.refusing import Refused
from perdure.controller.storage.service import StorageService
from perdure.controller.store import codec, jobs
from perdure.controller.store.jobs import Claim
from perdure.controller.store.standing import unfinished
from perdure.controller.store.writes import Writes
from perdure.recovery.actions import Note
from perdure.recovery.job import JobView


@dataclass(frozen=True)
class Submission:
    """A job that a user hands in, or `num_jobs` alike. `key`: whoever says it again means the same."""

    name: str | None
    configs: Sequence[Mapping[str, Any]]
    user: str
    key: str | None
    num_jobs: int = 1


@dataclass(frozen=True)
class Accepted:
    """`job_ids`: one, or a batch's in the order of its ranks. `task_ids`: the first's. `claims`: of the jobs that are
    to be taken up now; one that was accepted before may be another's, or settled. `views`: of the new ones."""

    job_ids: tuple[int, ...]
    name: str
    task_ids: tuple[str, ...]
    warnings: tuple[str, ...]
    claims: tuple[Claim, ...]
    views: Mapping[int, JobView] = field(default_factory=dict)

    @property
    def job_id(self) -> int:
        """The first one's."""
        return self.job_ids[0]


@dataclass(frozen=True)
class _Checked:
    """A submission that can be made durable."""

    asked: Submission
    compiled: Compiled
    at: float


@dataclass(frozen=True)
class Submissions:
    """Accepts jobs on behalf of the controller whose lease is `owner`. `has_upload`: `Files.renew`.

    `most_jobs_per_user`: that have not ended.
    """

    database: Engine
    clock: Clock
    keyring: Keyring
    market: Market
    storage: StorageService
    owner: str
    has_upload: Callable[[str, float], bool]
    most_jobs_per_user: int | None = None

    @cached_property
    def _compiler(self) -> Compiler:
        return Compiler(self.keyring, self.market, self.storage)

    def plan(self, name: str | None, configs: Sequence[Mapping[str, Any]], *, foresees: bool = False) -> dict[str, Any]:
        """What would be tried (`planning.plan`). Raises Refused."""
        return planning.plan(self._compiler, name, configs, self.clock.now(), foresees=foresees)

    def accept(self, asked: Submission) -> Accepted:
        """Make the job durable, or its batch, all or none. Raises Refused, or what the database raises; then nothing
        has changed, as far as is known."""
        (answer,) = self.accept_all([asked])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def accept_all(self, asked: Sequence[Submission]) -> list[Accepted | Exception]:
        """`accept` for each: an answer, or what it would raise, in the same order."""
        checked = [self._try(self._check, one) for one in asked]
        ready = [one for one in checked if isinstance(one, _Checked)]
        done = iter(self._accept_together(ready))
        return [next(done) if isinstance(one, _Checked) else one for one in checked]

    def _try(self, do: Callable[[Any], Any], what: Any) -> Any:
        try:
            return do(what)
        except Exception as error:  # noqa: BLE001 - raised to whoever asked
            return error

    def _check(self, asked: Submission) -> _Checked:
        now = self.clock.now()
        compiled = self._compiler.compile(asked.name, asked.configs, now)
        for digest in {digest for task in compiled.tasks for digest in uploads_of(task.spec)}:
            if not self.has_upload(digest, now):  # its node could only wait for it in vain
                raise Refused(f"there is no upload {digest[:12]}…", where="tasks", fix="send it before the job")
        return _Checked(asked, compiled, now)

    def _accept_together(self, ready: Sequence[_Checked]) -> Sequence[Accepted | Exception]:
        """One transaction for all; where that is refused, one for each."""
        keys = Counter(one.asked.key for one in ready if one.asked.key is not None)
        if len(ready) > 1 and not any(count > 1 for count in keys.values()):
            try:
                return self._record(ready)
            except (Refused, IntegrityError):
                pass  # on account of one of them
        return [self._try(self._accept_one, one) for one in ready]

    def _accept_one(self, one: _Checked) -> Accepted:
        try:
            (accepted,) = self._record([one])
        except IntegrityError:
            # Another controller has just accepted the same submission.
            with self.database.connect() as conn:
                if one.asked.key is None or not (known := jobs.find_by_key(conn, one.asked.key)):
                    raise
                return self._again(conn, one, known, ())
        return accepted

    def _record(self, ready: Sequence[_Checked]) -> list[Accepted]:
        """Raises Refused, IntegrityError for a key that another used meanwhile, and what else the database raises."""
        with self.database.begin() as conn:
            known = jobs.known_keys(conn, [one.asked.key for one in ready if one.asked.key is not None])
            new = [one for one in ready if one.asked.key not in known]
            ids = jobs.reserve_all(conn, [(self._columns(one), one.asked.num_jobs) for one in new])
            self._check_room(conn, [one.asked for one in new])
            writes = Writes(conn)
            fresh = iter([self._write(writes, one, its) for one, its in zip(new, ids, strict=True)])
            answers = []
            for one in ready:
                if one.asked.key in known:
                    again = jobs.find_by_key(conn, one.asked.key or "")
                    # Its first acceptance may have been cut off before the job was taken up: then it is now.
                    claims = tuple(claim for id in again if (claim := jobs.held(conn, id, self.owner)))
                    answers.append(self._again(conn, one, again, claims))
                else:
                    answers.append(next(fresh))
            writes.flush()
            if new:
                reach("job.accepting")
        if new:
            reach("job.accepted")
        return answers

    def _again(self, conn: Connection, one: _Checked, known: Sequence[int], claims: tuple[Claim, ...]) -> Accepted:
        compiled = one.compiled
        return Accepted(tuple(known), compiled.name, jobs.task_ids(conn, known[0]), compiled.warnings, claims)

    def _columns(self, one: _Checked) -> dict[str, Any]:
        return {
            "name": one.compiled.name,
            "user": one.asked.user,
            "priority": one.compiled.priority,
            "num_tasks": len(one.compiled.tasks),
            "submitted_at": one.at,
            "key": one.asked.key,
            "owner": self.owner,
        }

    def _write(self, writes: Writes, one: _Checked, job_ids: Sequence[int]) -> Accepted:
        tasks, name = one.compiled.tasks, one.compiled.name
        count = len(tasks)
        task_ids = {
            id: [_task_id(one.at, name, task.name, id, i, count) for i, task in enumerate(tasks)] for id in job_ids
        }
        jobs.add_tasks(writes, tasks, task_ids)
        note = Note("job.submitted", data={"tasks": count, "user": one.asked.user})
        for id in job_ids:
            jobs.record_notes(writes, id, [note], one.at)
        views = tuple(codec.shared(task.view) for task in tasks)
        return Accepted(
            tuple(job_ids),
            name,
            tuple(task_ids[job_ids[0]]),
            one.compiled.warnings,
            tuple(Claim(id, self.owner, 1) for id in job_ids),
            {id: JobView(id, views) for id in job_ids},
        )

    def _check_room(self, conn: Connection, asked: Sequence[Submission]) -> None:
        """Raises Refused where a user would have too many. To be called once their rows are there, without tasks."""
        most = self.most_jobs_per_user
        if most is None:
            return
        for user in sorted({one.user for one in asked}):  # in one order everywhere: their counts are locked
            has = unfinished(conn, user)
            for one in asked:
                if one.user == user:
                    _refuse_over(most, one, has)
                    has += one.num_jobs


def _refuse_over(most: int, asked: Submission, has: int) -> None:
    if has + asked.num_jobs <= most:
        return
    more = f"{asked.num_jobs} more" if asked.num_jobs > 1 else "one more"
    raise Refused(
        f"{asked.user or 'this user'} has {has} jobs that have not ended; with {more} there would be over {most}",
        where="user",
        fix="wait until some have ended, cancel some, or raise limits.most_jobs_per_user in config.yaml",
        status=429,
    )


def _task_id(now: float, job: str, task: str, job_id: int, index: int, count: int) -> str:
    """SKYPILOT_TASK_ID: made once, here, and the same in every attempt."""
    at = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d-%H-%M-%S-%f")
    middle = f"{job}_{task}" if count > 1 else job
    return f"sky-managed-{at}_{middle}_{job_id}-{index}"
