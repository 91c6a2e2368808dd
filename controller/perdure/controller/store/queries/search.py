"""Finds the jobs of a page, newest first, among a million. Read-only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, exists, func, literal_column, select, union_all

from perdure.controller.store.queries.globs import Glob
from perdure.controller.store.records.jobs import Attempt, Job, Task, is_managed
from perdure.recovery.statuses import TERMINAL, AttemptState, Status

MANY_ROWS = 10_000
WINDOW = 20_000
"""How many ids the first scan covers when names are compared one by one: 5 ms."""
_SCAN_COST = 2
"""The cost of reading a job by its id, relative to the cost of reading a name in the index."""

_LIVE = tuple(s.value for s in Status if s not in TERMINAL)
# The condition of the partial index of attempts: no database concludes it from a state that is not GONE.
_IS_LIVE = Attempt.c.state != AttemptState.GONE.value
_Other = Task.alias()


@dataclass(frozen=True)
class Filter:
    """Which managed jobs to list; those of clusters and services are only found by `ids`.

    At most one of `name` and `glob` is given.

    `before`: only jobs with lower ids. None for `name`, `ids`, `glob` or `user` sets no condition; empty `ids` match no
    job.
    """

    limit: int | None = 50
    before: int | None = None
    skip_finished: bool = False
    statuses: tuple[str, ...] = ()
    name: str | None = None
    ids: tuple[int, ...] | None = None
    glob: Glob | None = None
    user: str | None = None


def find_ids(conn: Connection, wanted: Filter) -> list[int]:
    """Ids of the jobs that match, newest first.

    Each plan follows an index in the order of ids and stops at the limit, so a page costs the same among a million
    past jobs as among a few. One exception: a name *and* statuses that each match many jobs, but hardly any together.
    For patterns see `_by_glob`.
    """
    if wanted.ids is not None and not wanted.ids:
        return []
    statuses = _LIVE if wanted.skip_finished else wanted.statuses
    if wanted.glob is not None and wanted.ids is None:
        return _by_glob(conn, wanted, wanted.glob, statuses)
    if wanted.ids is not None or not statuses:
        return _ids(conn, _by_job(conn, wanted))
    if wanted.user is not None and not _are_many(conn, select(Job.c.id).where(Job.c.user == wanted.user)):
        return _ids(conn, _by_job(conn, wanted))
    if wanted.name is not None and _is_rarer(conn, wanted.name, statuses):
        return _ids(conn, _by_job(conn, wanted))
    return _ids(conn, _by_status(conn, wanted, statuses))


def jobs_with_kept_machines(conn: Connection, among: Sequence[int] | None, user: str | None = None) -> list[int]:
    """The ids of jobs that have failed and whose machines are kept: of all jobs, or of those `among`; with `user`, only
    that user's."""
    query = (
        select(Attempt.c.job_id)
        .join(Job, Job.c.id == Attempt.c.job_id)
        .where(_IS_LIVE, Attempt.c.state == AttemptState.STOPPED.value, Attempt.c.terminating.is_(False))
        .where(Job.c.finalized.is_(False))
        .distinct()
    )
    if user is not None:
        query = query.where(Job.c.user == user)
    return list(conn.execute(query if among is None else query.where(Attempt.c.job_id.in_(among))).scalars())


def _by_glob(conn: Connection, wanted: Filter, glob: Glob, statuses: Sequence[str]) -> list[int]:
    """Read the names with the pattern's prefix, or the jobs with the statuses, if they are few. Otherwise scan the
    newest jobs, as long as that promises the page sooner than reading the names, and then read the names.

    So a page is expensive only if many names have the prefix (all of them, if the pattern begins with a wildcard) and
    the names that match are rare or old: then it reads all of those names in the index.
    """
    if wanted.limit is None or not _are_many(conn, _with_prefix(conn, glob)):
        return _ids(conn, _by_name(conn, wanted, glob))
    if statuses and not _are_many(conn, select(Task.c.job_id).where(Task.c.status.in_(statuses))):
        return _ids(conn, _by_status(conn, wanted, statuses))
    return _by_scan(conn, wanted, glob, wanted.limit)


def _by_scan(conn: Connection, wanted: Filter, glob: Glob, limit: int) -> list[int]:
    """Scan the newest jobs, window by window, and find the rest of the page by name."""
    beyond = (conn.execute(select(func.max(Job.c.id))).scalar() or 0) + 1
    beyond = beyond if wanted.before is None else min(beyond, wanted.before)
    ids: list[int] = []
    seen, width = 0, WINDOW
    while beyond > 1:
        missing = limit - len(ids)
        window = replace(wanted, before=beyond, limit=missing)
        ids += _ids(conn, _by_job(conn, window).where(Job.c.id >= beyond - width))
        missing, seen, beyond = limit - len(ids), seen + width, beyond - width
        if missing == 0:
            break
        if _SCAN_COST * seen * missing > len(ids) * beyond:
            return ids + _ids(conn, _by_name(conn, replace(wanted, before=beyond, limit=missing), glob))
        width *= 2
    return ids


def _ids(conn: Connection, query: Select[Any]) -> list[int]:
    return list(conn.execute(query).scalars())


def _by_job(conn: Connection, wanted: Filter) -> Select[Any]:
    """A query that follows the index on ids, or on a name and ids."""
    query = select(Job.c.id).where(*_conditions(wanted))
    if wanted.ids is None:
        query = query.where(is_managed(Job.c.id))
    if wanted.name is not None:
        query = query.where(Job.c.name == wanted.name)
    if wanted.glob is not None:
        # An expression, so that no database follows the index on names: it would have to sort all matches first.
        query = query.where(_matches(conn, Job.c.name + "", wanted.glob))
    return query.order_by(Job.c.id.desc()).limit(wanted.limit)


def _by_name(conn: Connection, wanted: Filter, glob: Glob) -> Select[Any]:
    """A query that follows the names with the pattern's prefix and sorts all matches."""
    number = Job.c.id + 0  # an expression, so that no database follows the index on ids
    query = select(Job.c.id).where(
        *_prefix_conditions(conn, glob),
        _matches(conn, Job.c.name, glob),
        *_conditions(wanted, number),
        is_managed(Job.c.id),
    )
    return query.order_by(number.desc()).limit(wanted.limit)


def _conditions(wanted: Filter, id: ColumnElement[int] = Job.c.id) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.ids is not None:
        conditions.append(Job.c.id.in_(wanted.ids))
    if wanted.before is not None:
        conditions.append(id < wanted.before)
    if wanted.skip_finished:
        conditions.append(_has_task(Job.c.id, _LIVE))
    if wanted.statuses:
        conditions.append(_has_task(Job.c.id, wanted.statuses))
    if wanted.user is not None:
        conditions.append(Job.c.user == wanted.user)
    return conditions


def _by_status(conn: Connection, wanted: Filter, statuses: Sequence[str]) -> Select[Any]:
    """A query that follows the tasks of each status and merges their newest jobs."""
    parts = []
    for status in statuses:
        newest = select(Task.c.job_id).where(Task.c.status == status, is_managed(Task.c.job_id))
        if wanted.before is not None:
            newest = newest.where(Task.c.job_id < wanted.before)
        if wanted.name is not None:
            newest = newest.where(exists().where(Job.c.id == Task.c.job_id, Job.c.name == wanted.name))
        if wanted.user is not None:
            newest = newest.where(exists().where(Job.c.id == Task.c.job_id, Job.c.user == wanted.user))
        if wanted.glob is not None:
            named = _matches(conn, Job.c.name + "", wanted.glob)
            newest = newest.where(exists().where(Job.c.id == Task.c.job_id, named))
        if wanted.skip_finished and wanted.statuses:
            newest = newest.where(_has_task(Task.c.job_id, wanted.statuses))
        part = newest.distinct().order_by(Task.c.job_id.desc()).limit(wanted.limit).subquery()
        parts.append(select(part.c.job_id))
    merged = union_all(*parts).subquery()
    return select(merged.c.job_id).distinct().order_by(merged.c.job_id.desc()).limit(wanted.limit)


def _has_task(job_id: ColumnElement[int], statuses: Sequence[str]) -> ColumnElement[bool]:
    return exists().where(_Other.c.job_id == job_id, _Other.c.status.in_(statuses))


def _prefix_conditions(conn: Connection, glob: Glob) -> list[ColumnElement[bool]]:
    """The condition that a name has the pattern's prefix, as a range of the index on names."""
    if not glob.prefix:
        return []
    if conn.dialect.name == "postgresql":  # in byte order, whatever the collation of the database
        return [
            Job.c.name.op("~>=~", is_comparison=True)(glob.prefix),
            Job.c.name.op("~<~", is_comparison=True)(glob.after_prefix),
        ]
    return [Job.c.name >= glob.prefix, Job.c.name < glob.after_prefix]


def _with_prefix(conn: Connection, glob: Glob) -> Select[Any]:
    """The jobs whose names have the pattern's prefix, in the order of the index on names."""
    query = select(Job.c.id).where(*_prefix_conditions(conn, glob))
    if conn.dialect.name == "postgresql":  # the planner would otherwise scan the table
        query = query.order_by(literal_column("job.name USING ~<~"))
    return query


def _matches(conn: Connection, name: ColumnElement[str], glob: Glob) -> ColumnElement[bool]:
    if conn.dialect.name != "postgresql":
        return name.op("GLOB", is_comparison=True)(glob.sqlite)
    return name.like(glob.like) if glob.like is not None else name.op("~", is_comparison=True)(glob.regex)


def _is_rarer(conn: Connection, name: str, statuses: Sequence[str]) -> bool:
    """Whether fewer jobs have the name than tasks have the statuses."""
    if not _are_many(conn, select(Job.c.id).where(Job.c.name == name)):
        return True
    return _are_many(conn, select(Task.c.job_id).where(Task.c.status.in_(statuses)))


def _are_many(conn: Connection, rows: Select[Any]) -> bool:
    """Whether there are `MANY_ROWS` or more. Counts no further."""
    counted = rows.limit(MANY_ROWS).subquery()
    return (conn.execute(select(func.count()).select_from(counted)).scalar() or 0) >= MANY_ROWS
