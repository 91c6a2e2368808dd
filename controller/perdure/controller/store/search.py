"""Which jobs a user asks for, newest first, a page at a time among a million. Read-only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, exists, func, literal_column, select, union_all

from perdure.controller.store.globs import Glob
from perdure.controller.store.jobs import Job, Task
from perdure.recovery.statuses import TERMINAL, Status

FEW = 10_000
WINDOW = 20_000
"""How many ids are looked through at first where names are compared one by one: 5 ms."""
_WALK_COSTS = 2
"""What it takes to look at a job by its id, where to look at a name in the index takes one."""

_LIVE = tuple(s.value for s in Status if s not in TERMINAL)
_Other = Task.alias()


@dataclass(frozen=True)
class Filter:
    """Which jobs to list: newest first, those below id `before`. Of `name` and `glob`, one at most is given."""

    limit: int | None = 50
    before: int | None = None
    skip_finished: bool = False
    statuses: tuple[str, ...] = ()
    name: str | None = None
    ids: tuple[int, ...] = ()
    glob: Glob | None = None


def find_ids(conn: Connection, wanted: Filter) -> list[int]:
    """Ids of the jobs that match, newest first.

    Each way goes along an index in the order of ids and stops at the limit, so a page costs the same among a million
    past jobs as among a few. One exception: a name *and* statuses that each have very many, but hardly a job in common.
    For a pattern of names see `_by_glob`.
    """
    statuses = _LIVE if wanted.skip_finished else wanted.statuses
    if wanted.glob is not None and not wanted.ids:
        return _by_glob(conn, wanted, wanted.glob, statuses)
    if wanted.ids or not statuses:
        return _ids(conn, _by_job(conn, wanted))
    if wanted.name and _is_rarer(conn, wanted.name, statuses):
        return _ids(conn, _by_job(conn, wanted))
    return _ids(conn, _by_status(conn, wanted, statuses))


def _by_glob(conn: Connection, wanted: Filter, glob: Glob, statuses: Sequence[str]) -> list[int]:
    """Where few names begin as the pattern does, or few jobs have the statuses, those are looked through; otherwise
    the newest jobs, for as long as they promise the page sooner than all names would, and then the names.

    So a page is dear only where very many names begin as the pattern does (all, if it begins with a wildcard), and
    those that match are rare or old: then it looks through the names, in the index.
    """
    if wanted.limit is None or not _are_many(conn, _beginning(conn, glob)):
        return _ids(conn, _by_name(conn, wanted, glob))
    if statuses and not _are_many(conn, select(Task.c.job_id).where(Task.c.status.in_(statuses))):
        return _ids(conn, _by_status(conn, wanted, statuses))
    return _by_walk(conn, wanted, glob, wanted.limit)


def _by_walk(conn: Connection, wanted: Filter, glob: Glob, limit: int) -> list[int]:
    """Through the newest jobs, window by window, and through the names for what is left."""
    beyond = (conn.execute(select(func.max(Job.c.id))).scalar() or 0) + 1
    beyond = beyond if wanted.before is None else min(beyond, wanted.before)
    found: list[int] = []
    seen, width = 0, WINDOW
    while beyond > 1:
        missing = limit - len(found)
        window = replace(wanted, before=beyond, limit=missing)
        found += _ids(conn, _by_job(conn, window).where(Job.c.id >= beyond - width))
        missing, seen, beyond = limit - len(found), seen + width, beyond - width
        if missing == 0:
            break
        if _WALK_COSTS * seen * missing > len(found) * beyond:
            return found + _ids(conn, _by_name(conn, replace(wanted, before=beyond, limit=missing), glob))
        width *= 2
    return found


def _ids(conn: Connection, query: Select[Any]) -> list[int]:
    return list(conn.execute(query).scalars())


def _by_job(conn: Connection, wanted: Filter) -> Select[Any]:
    """Along the jobs, or those of a name."""
    query = select(Job.c.id).where(*_conditions(wanted))
    if wanted.name:
        query = query.where(Job.c.name == wanted.name)
    if wanted.glob is not None:
        # Said so that no database goes along the names: whatever matches would have to be sorted before the first.
        query = query.where(_matches(conn, Job.c.name + "", wanted.glob))
    return query.order_by(Job.c.id.desc()).limit(wanted.limit)


def _by_name(conn: Connection, wanted: Filter, glob: Glob) -> Select[Any]:
    """Along the names that begin as the pattern does; all that match are sorted."""
    number = Job.c.id + 0  # of which there is no index: so no database goes along the ids
    query = select(Job.c.id).where(*_begins(conn, glob), _matches(conn, Job.c.name, glob), *_conditions(wanted, number))
    return query.order_by(number.desc()).limit(wanted.limit)


def _conditions(wanted: Filter, id: ColumnElement[int] = Job.c.id) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if wanted.ids:
        found.append(Job.c.id.in_(wanted.ids))
    if wanted.before is not None:
        found.append(id < wanted.before)
    if wanted.skip_finished:
        found.append(_has_task(Job.c.id, _LIVE))
    if wanted.statuses:
        found.append(_has_task(Job.c.id, wanted.statuses))
    return found


def _by_status(conn: Connection, wanted: Filter, statuses: Sequence[str]) -> Select[Any]:
    """Along the tasks of each status, whose newest jobs are then merged."""
    parts = []
    for status in statuses:
        newest = select(Task.c.job_id).where(Task.c.status == status)
        if wanted.before is not None:
            newest = newest.where(Task.c.job_id < wanted.before)
        if wanted.name:
            newest = newest.where(exists().where(Job.c.id == Task.c.job_id, Job.c.name == wanted.name))
        if wanted.glob is not None:
            named = _matches(conn, Job.c.name + "", wanted.glob)
            newest = newest.where(exists().where(Job.c.id == Task.c.job_id, named))
        if wanted.skip_finished and wanted.statuses:
            newest = newest.where(_has_task(Task.c.job_id, wanted.statuses))
        part = newest.distinct().order_by(Task.c.job_id.desc()).limit(wanted.limit).subquery()
        parts.append(select(part.c.job_id))
    found = union_all(*parts).subquery()
    return select(found.c.job_id).distinct().order_by(found.c.job_id.desc()).limit(wanted.limit)


def _has_task(job_id: ColumnElement[int], statuses: Sequence[str]) -> ColumnElement[bool]:
    return exists().where(_Other.c.job_id == job_id, _Other.c.status.in_(statuses))


def _begins(conn: Connection, glob: Glob) -> list[ColumnElement[bool]]:
    """That a name begins as the pattern does, as a range of the index on names."""
    if not glob.prefix:
        return []
    if conn.dialect.name == "postgresql":  # byte by byte, whatever language the database sorts by
        return [
            Job.c.name.op("~>=~", is_comparison=True)(glob.prefix),
            Job.c.name.op("~<~", is_comparison=True)(glob.after_prefix),
        ]
    return [Job.c.name >= glob.prefix, Job.c.name < glob.after_prefix]


def _beginning(conn: Connection, glob: Glob) -> Select[Any]:
    """The jobs whose names begin as the pattern does, along the index on names."""
    query = select(Job.c.id).where(*_begins(conn, glob))
    if conn.dialect.name == "postgresql":  # which would rather read the table, in the hope to find the first ones soon
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
    """Whether there are `FEW` or more. Counts no further."""
    some = rows.limit(FEW).subquery()
    return (conn.execute(select(func.count()).select_from(some)).scalar() or 0) >= FEW
