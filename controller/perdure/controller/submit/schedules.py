"""Schedules: jobs that are launched again and again, at the times of a cron expression.

A run is an ordinary job with the name of its schedule. Its key names the schedule and the time at which it was due. So
a controller that dies between the launch and the record of it launches no second job, nor does a second controller.
Times are those of the wall clock, whatever speed simulated clouds run at.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import structlog
from sqlalchemy import Engine, Row
from sqlalchemy.exc import IntegrityError

from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.security.keyring import Keyring, UnknownKey
from perdure.controller.store import job_schedules
from perdure.controller.store.access import owners, users
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.records.jobs import KEY_SEPARATOR
from perdure.controller.submit.compiler import Compiler, upload_digests
from perdure.controller.submit.cron import BadCron, Cron
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.requester import Requester
from perdure.controller.submit.service import Accepted, Submission, require_no_callback

log = structlog.get_logger(__name__)

INTERVAL_S = 1.0
LATE_AFTER_S = 60.0
"""A run that would begin later than this after its time was missed: no controller worked."""
_TOUCH_INTERVAL_S = 3600.0
_NO_CALLBACKS = {"callbacks": "refused"}  # in what is sealed: the one who saved the tasks may run no `event_callback`

Missed = Literal["once", "skip"]
"""What happens to runs that were missed: one of them is made up for, or none."""
Touch = Callable[[str, float], bool]
"""Renews an upload (digest, now); returns whether it is stored."""


@dataclass(frozen=True)
class NewSchedule:
    """What a user requests."""

    name: str
    cron: str
    time_zone: str
    tasks: Sequence[Mapping[str, Any]]
    missed: Missed = "once"
    overlaps: bool = False


@dataclass
class ScheduleService:
    """The schedules of an installation. Methods raise RequestRejected, and what the database raises.

    `of`: the user whose schedules may be seen or changed; None: those of everybody. Another's is as one that does not
    exist.
    """

    database: Engine
    wall_clock: Clock
    keyring: Keyring
    compiler: Compiler
    accept: Callable[[Submission], Accepted]
    touch: Touch
    _touched_at: float = field(default=float("-inf"), repr=False)

    def save(self, new: NewSchedule, by: Requester) -> Sequence[str]:
        """Create a schedule, or replace the one of that name. Returns the warnings of its tasks.

        Its jobs are launched later, when nobody asks whether their files are the user's: that is checked here.
        """
        now = self.wall_clock.now()
        cron = _parse(new.cron, new.time_zone)
        if (next_at := cron.next_after(now)) is None:
            fix = "name a day that its month has, such as `0 3 28 2 *`"
            raise RequestRejected(f"{new.cron!r} is never due", where="cron", fix=fix)
        tasks = [dict(task) for task in new.tasks]
        compiled = self.compiler.compile(new.name, tasks, now)
        digests = sorted({digest for task in compiled.tasks for digest in upload_digests(task.spec)})
        if not by.may_run_callbacks and self.compiler.notify.runs_callbacks:
            require_no_callback(compiled)
        self._require_uploads(digests, by.of, now)
        sealed = {"tasks": json.dumps(tasks), **({} if by.may_run_callbacks else _NO_CALLBACKS)}
        columns = {
            "user": by.user,
            "cron": cron.expression,
            "time_zone": new.time_zone,
            "missed": new.missed,
            "overlaps": new.overlaps,
            "paused": False,
            "tasks": self.keyring.seal(sealed),
            "uploads": digests,
            "created_at": now,
            "next_at": next_at,
        }
        try:
            with self.database.begin() as conn:
                if by.for_owner and (row := job_schedules.find(conn, new.name, by.of)) is not None:
                    columns["user"] = row.user
                job_schedules.save(conn, new.name, columns, by.of)
        except IntegrityError as error:
            message = f"the name {new.name} is in use by a schedule of another user"
            raise RequestRejected(message, where="name", fix="choose another name", status=409) from error
        return compiled.warnings

    def _require_uploads(self, digests: Sequence[str], of: str | None, now: float) -> None:
        """Renew the uploads. Raises RequestRejected for one that is not stored, or that the user has not sent."""
        own = set(digests)
        if of is not None:
            with self.database.connect() as conn:
                own = owners.owned_uploads(conn, digests, of)
        if missing := [digest for digest in digests if digest not in own or not self.touch(digest, now)]:
            raise RequestRejected(
                f"there is no upload {missing[0][:12]}…", where="tasks", fix="upload it before you save the schedule"
            )

    def pause(self, name: str, of: str | None = None) -> None:
        """Launch nothing until `resume`."""
        self._change(name, of, paused=True)

    def resume(self, name: str, of: str | None = None) -> None:
        """Launch again, from now on: nothing that was due meanwhile."""
        row = self.find(name, of)
        self._change(name, of, paused=False, next_at=_parse(row.cron, row.time_zone).next_after(self.wall_clock.now()))

    def remove(self, name: str, of: str | None = None) -> None:
        """Remove a schedule. Its jobs go on."""
        with self.database.begin() as conn:
            if not job_schedules.remove(conn, name, of):
                raise no_such_schedule(name)

    def run_now(self, name: str, by: Requester, key: str) -> Accepted:
        """Launch a job of the schedule now, beside its times. Repeating it with `key` does it once."""
        row = self.find(name, by.of)
        return self.accept(replace(self._submission(row, _run_key(row.id, "now", key)), actor=by.actor))

    def find(self, name: str, of: str | None = None) -> Row[Any]:
        with self.database.connect() as conn:
            row = job_schedules.find(conn, name, of)
        if row is None:
            raise no_such_schedule(name)
        return row

    def tick(self) -> None:
        """Launch what is due. Logs errors of the database, and raises none."""
        now = self.wall_clock.now()
        try:
            with self.database.connect() as conn:
                due = job_schedules.due(conn, now)
            for row in due:
                self._run(row, now)
            if now - self._touched_at >= _TOUCH_INTERVAL_S:
                self._touch_uploads(now)
                self._touched_at = now
        except UNAVAILABLE as error:
            log.warning("database.unavailable", error=str(error))

    def _run(self, row: Row[Any], now: float) -> None:
        """Launch the job of one time, unless the schedule's rules say otherwise, and set the next time."""
        changes: dict[str, Any] = {"next_at": Cron.parse(row.cron, row.time_zone).next_after(now)}
        if row.missed == "skip" and now - row.next_at > LATE_AFTER_S:
            changes["last_result"] = "skipped: no controller worked when it was due"
        elif not row.overlaps and self._still_runs(row.last_job_id):
            changes["last_result"] = f"skipped: job {row.last_job_id} had not ended"
        elif self._is_disabled(row.user):
            changes["last_result"] = f"skipped: the user {row.user} is disabled"
        else:
            try:
                accepted = self.accept(self._submission(row, _run_key(row.id, f"{row.next_at:.0f}")))
                changes |= {"last_job_id": accepted.job_id, "last_result": ""}
            except (RequestRejected, UnknownKey) as error:
                changes["last_result"] = f"not launched: {error}"
        if changes.get("last_result"):
            log.warning("schedule.not_run", schedule=row.name, result=changes["last_result"])
        with self.database.begin() as conn:
            job_schedules.advance(conn, row.id, row.next_at, **changes)

    def _submission(self, row: Row[Any], key: str) -> Submission:
        sealed = self.keyring.unseal(row.tasks)
        trusted = not (_NO_CALLBACKS.items() <= sealed.items())
        return Submission(row.name, json.loads(sealed["tasks"]), row.user, key, may_run_callbacks=trusted)

    def _is_disabled(self, user: str) -> bool:
        with self.database.connect() as conn:
            row = users.get(conn, user)
        return row is not None and row.disabled_at is not None

    def _still_runs(self, job_id: int | None) -> bool:
        if job_id is None:
            return False
        with self.database.connect() as conn:
            return job_schedules.has_unfinished_tasks(conn, job_id)

    def _touch_uploads(self, now: float) -> None:
        """Keep the files that schedules name from expiring."""
        with self.database.connect() as conn:
            digests = {digest for row in job_schedules.list_all(conn) for digest in row.uploads}
        for digest in digests:
            self.touch(digest, now)

    def _change(self, name: str, of: str | None, **columns: Any) -> None:
        with self.database.begin() as conn:
            if not job_schedules.change(conn, name, of, **columns):
                raise no_such_schedule(name)


def no_such_schedule(name: str) -> RequestRejected:
    return RequestRejected(f"there is no schedule {name!r}", fix="see `perdure jobs schedule ls`", status=404)


def _parse(cron: str, time_zone: str) -> Cron:
    try:
        return Cron.parse(cron, time_zone)
    except BadCron as error:
        raise RequestRejected(str(error), where=error.where, fix=error.fix) from error


def _run_key(schedule_id: int, *parts: str) -> str:
    """The idempotency key of a run. No user can send it."""
    return KEY_SEPARATOR.join(("schedule", str(schedule_id), *parts))
