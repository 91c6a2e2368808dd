"""Sweeps: jobs that were launched together, seen and acted on as one.

A sweep is named after its first job. Of each rank, the newest job counts: `retry` launches ranks that have failed
again, as jobs of the same sweep with the same rank, and so with the same values of its grid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, Row, exists, select

from perdure.controller.runtime.clock import Clock
from perdure.controller.store import grid
from perdure.controller.store.queries import job_listing
from perdure.controller.store.records.jobs import KEY_SEPARATOR, Batch, Job, Task
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.requester import Requester
from perdure.controller.submit.service import Accepted, Submission
from perdure.recovery.statuses import TERMINAL, Status

_RETRIED = frozenset(TERMINAL) - {Status.SUCCEEDED, Status.CANCELLED}


@dataclass(frozen=True)
class SweepService:
    """The sweeps of an installation. Methods raise RequestRejected, and what the database raises.

    `of`: the user whose sweeps may be seen; None: those of everybody. Another's is as one that does not exist.
    """

    database: Engine
    clock: Clock
    accept: Callable[[Submission], Accepted]

    def describe(self, sweep_id: int, of: str | None = None) -> dict[str, Any]:
        """The API's Sweep: the newest job of each rank, and how many have which status."""
        rows, now = self._rows(sweep_id, of), self.clock.now()
        ranks = _newest(rows)
        with self.database.connect() as conn:
            tasks = job_listing.describe(conn, [row.id for row in rows], now)
            grid_of = conn.execute(select(Task.c.spec["sweep"]).where(Task.c.job_id == sweep_id)).scalar() or {}
        by_id: dict[int, list[dict[str, Any]]] = {}
        for task in tasks:
            by_id.setdefault(task["job_id"], []).append(task)
        jobs = [_member(rank, by_id[row.id], grid_of) for rank, row in sorted(ranks.items())]
        return {
            "sweep_id": sweep_id,
            "name": rows[0].name,
            "user": rows[0].user,
            "size": rows[0].batch_size,
            "counts": dict(Counter(job["status"] for job in jobs)),
            "cost_usd": round(sum(task["cost_usd"] for task in tasks), 6),
            "jobs": jobs,
        }

    def exists(self, sweep_id: int, of: str | None = None) -> bool:
        """Whether there is such a sweep."""
        where = (Job.c.sweep_id == sweep_id, *(() if of is None else (Job.c.user == of,)))
        with self.database.connect() as conn:
            return bool(conn.execute(select(exists().where(*where))).scalar())

    def retry(self, sweep_id: int, by: Requester, key: str) -> Sequence[int]:
        """Launch the ranks whose newest job has failed again. Returns the ids of the new jobs. Once for each `key`.

        They are jobs of the user of the sweep, and use its files, which that user was allowed to use.
        """
        failed = {job["rank"] for job in self.describe(sweep_id, by.of)["jobs"] if job["status"] in _RETRIED}
        with self.database.connect() as conn:
            query = select(Task.c.config, Task.c.spec, Job.c.name, Job.c.user, Job.c.batch_size)
            rows = conn.execute(query.join(Job, Job.c.id == Task.c.job_id).where(Job.c.id == sweep_id)).all()
        if not failed:
            raise RequestRejected("no job of the sweep has failed", fix="see `perdure jobs sweep`", status=409)
        if any(row.spec["secret_names"] for row in rows):
            fix = "launch it again with its secrets, and --env or a smaller grid for the jobs that are missing"
            raise RequestRejected("the secrets of the sweep were deleted when its jobs ended", fix=fix, status=409)
        batch = Batch(rows[0].batch_size, sorted(failed), sweep_id)
        configs = [row.config for row in rows]
        of_retry = KEY_SEPARATOR.join(("sweep", str(sweep_id), key))  # no user can send it
        submission = Submission(
            rows[0].name,
            configs,
            rows[0].user,
            of_retry,
            len(failed),
            retries=batch,
            actor=by.actor,
            may_run_callbacks=by.may_run_callbacks,
        )
        return self.accept(submission).job_ids

    def _rows(self, sweep_id: int, of: str | None) -> Sequence[Row[Any]]:
        where = (Job.c.sweep_id == sweep_id, *(() if of is None else (Job.c.user == of,)))
        with self.database.connect() as conn:
            query = select(Job.c.id, Job.c.name, Job.c.user, Job.c.batch_rank, Job.c.batch_size)
            rows: list[Any] = list(conn.execute(query.where(*where).order_by(Job.c.id)))
        if not rows:
            raise no_such_sweep(sweep_id)
        return rows


def no_such_sweep(sweep_id: int) -> RequestRejected:
    fix = "a sweep has the id of its first job: see `perdure jobs queue`"
    return RequestRejected(f"there is no sweep {sweep_id}", fix=fix, status=404)


def _newest(rows: Sequence[Row[Any]]) -> dict[int, Row[Any]]:
    """Rank → its newest job."""
    return {row.batch_rank: row for row in rows}


def _member(rank: int, tasks: Sequence[Mapping[str, Any]], grid_of: grid.Grid) -> dict[str, Any]:
    current = next((task for task in tasks if task["status"] != Status.SUCCEEDED), tasks[-1])
    return {
        "rank": rank,
        "job_id": current["job_id"],
        "status": current["status"],
        "values": grid.combination(grid_of, rank) if grid_of else {},
        "message": current["message"] or "",
    }
