"""What users ask: the queue, one job with its attempts and timeline. Read-only; how many there are is in `counts`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Connection, Select, bindparam, exists, func, select, union_all

from holdfast.controller.store.jobs import Attempt, EventT, Job, Node, Task
from holdfast.recovery.reasons import Reason
from holdfast.recovery.statuses import TERMINAL, AttemptState, Status

_LIVE = tuple(s.value for s in Status if s not in TERMINAL)
FEW = 10_000
_Other = Task.alias()

_JOB_IDS: BindParameter[list[int]] = bindparam("job_ids", expanding=True)
_OF_TASK = (
    *("job_id", "index", "name", "status", "reason", "message", "task_id", "wake_at", "started_at", "ended_at"),
    *("run_since", "run_seconds", "recovery_count", "restarts_on_errors", "num_nodes"),
)
# Of a page's jobs only what it shows is read: a task's own text may be long.
_TASKS = (
    select(*(Task.c[name] for name in _OF_TASK), Task.c.spec["resources"].as_string().label("resources"))
    .add_columns(Job.c.name.label("job_name"), Job.c.user, Job.c.priority, Job.c.num_tasks, Job.c.cleanup)
    .add_columns(Job.c.submitted_at)
    .join(Job, Job.c.id == Task.c.job_id)
    .where(Task.c.job_id.in_(_JOB_IDS))
    .order_by(Task.c.job_id.desc(), Task.c.index)
)
_NODES = select(Node).where(Node.c.job_id.in_(_JOB_IDS)).order_by(Node.c.rank)
_ATTEMPTS = select(Attempt).where(Attempt.c.job_id.in_(_JOB_IDS)).order_by(Attempt.c.task_index, Attempt.c.generation)
_KEY = ("job_id", "task_index", "generation")
_SHORT_NODES = _NODES.with_only_columns(
    *(Node.c[name] for name in (*_KEY, "rank", "launched_at", "ended_at", "exit_code"))
)
_SHORT_ATTEMPTS = _ATTEMPTS.with_only_columns(
    *(Attempt.c[name] for name in (*_KEY, "state", "offer", "booted_at", "gone_at"))
)


@dataclass(frozen=True)
class Filter:
    """Which jobs to list: newest first, those below id `before`."""

    limit: int | None = 50
    before: int | None = None
    skip_finished: bool = False
    statuses: tuple[str, ...] = ()
    name: str | None = None
    ids: tuple[int, ...] = ()


def iso(at: float | None) -> str | None:
    """Epoch seconds as ISO 8601 UTC."""
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def find_ids(conn: Connection, wanted: Filter) -> list[int]:
    """Ids of the jobs that match, newest first.

    Each way goes along an index in the order of ids and stops at the limit, so a page costs the same among a million
    past jobs as among a few. One exception: a name *and* statuses that each have very many, but hardly a job in common.
    """
    statuses = _LIVE if wanted.skip_finished else wanted.statuses
    if wanted.ids or not statuses:
        return _ids(conn, _by_job(wanted))
    if wanted.name and _is_rarer(conn, wanted.name, statuses):
        return _ids(conn, _by_job(wanted))
    return _ids(conn, _by_status(wanted, statuses))


def _ids(conn: Connection, query: Select[Any]) -> list[int]:
    return list(conn.execute(query).scalars())


def _by_job(wanted: Filter) -> Select[Any]:
    """Along the jobs, or those of a name."""
    conditions: list[ColumnElement[bool]] = []
    if wanted.ids:
        conditions.append(Job.c.id.in_(wanted.ids))
    if wanted.before is not None:
        conditions.append(Job.c.id < wanted.before)
    if wanted.name:
        conditions.append(Job.c.name == wanted.name)
    if wanted.skip_finished:
        conditions.append(_has_task(Job.c.id, _LIVE))
    if wanted.statuses:
        conditions.append(_has_task(Job.c.id, wanted.statuses))
    return select(Job.c.id).where(*conditions).order_by(Job.c.id.desc()).limit(wanted.limit)


def _by_status(wanted: Filter, statuses: Sequence[str]) -> Select[Any]:
    """Along the tasks of each status, whose newest jobs are then merged."""
    parts = []
    for status in statuses:
        newest = select(Task.c.job_id).where(Task.c.status == status)
        if wanted.before is not None:
            newest = newest.where(Task.c.job_id < wanted.before)
        if wanted.name:
            newest = newest.where(exists().where(Job.c.id == Task.c.job_id, Job.c.name == wanted.name))
        if wanted.skip_finished and wanted.statuses:
            newest = newest.where(_has_task(Task.c.job_id, wanted.statuses))
        part = newest.distinct().order_by(Task.c.job_id.desc()).limit(wanted.limit).subquery()
        parts.append(select(part.c.job_id))
    found = union_all(*parts).subquery()
    return select(found.c.job_id).distinct().order_by(found.c.job_id.desc()).limit(wanted.limit)


def _has_task(job_id: ColumnElement[int], statuses: Sequence[str]) -> ColumnElement[bool]:
    return exists().where(_Other.c.job_id == job_id, _Other.c.status.in_(statuses))


def _is_rarer(conn: Connection, name: str, statuses: Sequence[str]) -> bool:
    """Whether fewer jobs have the name than tasks have the statuses. Counts no further than to `FEW`."""
    named = select(Job.c.id).where(Job.c.name == name).limit(FEW).subquery()
    if (conn.execute(select(func.count()).select_from(named)).scalar() or 0) < FEW:
        return True
    so = select(Task.c.job_id).where(Task.c.status.in_(statuses)).limit(FEW).subquery()
    return (conn.execute(select(func.count()).select_from(so)).scalar() or 0) == FEW


def describe(conn: Connection, job_ids: Sequence[int], now: float) -> list[dict[str, Any]]:
    """The API's Job objects: one per task, jobs newest first, tasks in order."""
    tasks = conn.execute(_TASKS, {"job_ids": job_ids}).mappings().all()
    attempts = _attempts(conn, job_ids, _SHORT_ATTEMPTS, _SHORT_NODES)
    return [_job(row, attempts.get((row["job_id"], row["index"]), []), now) for row in tasks]


def _wait_text(row: Mapping[Any, Any]) -> str:
    """Why a task that waits for an offer waits, and until when."""
    if row["reason"] != Reason.BACKING_OFF or row["wake_at"] is None:
        return str(row["message"])
    at = datetime.fromtimestamp(row["wake_at"], UTC)
    return f"every offer that fits has refused lately; the next try is at {at:%Y-%m-%d %H:%M:%S} UTC"


def _bought(offer: dict[str, Any], num_nodes: int) -> str:
    """An attempt's machines: `2x(local-v100x1, V100:1, spot)`."""
    accelerators = f"{offer['accelerators'][0]}:{offer['accelerators'][1]:g}" if offer.get("accelerators") else ""
    named = ", ".join(part for part in (offer["instance_type"], accelerators, offer["market"]) if part)
    return f"{num_nodes}x({named})"


def attempts_of(conn: Connection, job_id: int, now: float) -> list[dict[str, Any]]:
    """The API's Attempt objects of a job, in order."""
    found = _attempts(conn, [job_id], _ATTEMPTS, _NODES)
    return [_attempt(a, now) for _, group in sorted(found.items()) for a in group]


def timeline(conn: Connection, job_id: int) -> list[dict[str, Any]]:
    rows = conn.execute(select(EventT).where(EventT.c.job_id == job_id).order_by(EventT.c.id)).mappings()
    names = ("kind", "task_index", "generation", "rank", "reason", "message", "data")
    return [{"at": iso(row["at"]), **{name: row[name] for name in names}} for row in rows]


def _attempts(
    conn: Connection, job_ids: Sequence[int], attempts: Select[Any], nodes: Select[Any]
) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """What these two queries find of the jobs' attempts, by (job, task), each with its `nodes`."""
    nodes_of: dict[tuple[int, int, int], list[Mapping[Any, Any]]] = {}
    for row in conn.execute(nodes, {"job_ids": job_ids}).mappings().all():
        nodes_of.setdefault((row["job_id"], row["task_index"], row["generation"]), []).append(row)
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in conn.execute(attempts, {"job_ids": job_ids}).mappings().all():
        key = (row["job_id"], row["task_index"])
        its_nodes = nodes_of.get((*key, row["generation"]), [])
        found.setdefault(key, []).append({**row, "nodes": its_nodes})
    return found


def _hours(attempt: dict[str, Any], now: float) -> float:
    """Machine hours billed, summed over the nodes."""
    total = 0.0
    for node in attempt["nodes"]:
        begun = node["launched_at"] if node["launched_at"] is not None else attempt["booted_at"]
        if begun is None:
            continue
        ended = node["ended_at"] if node["ended_at"] is not None else attempt["gone_at"]
        total += max(0.0, (now if ended is None else ended) - begun) / 3600
    return total


def _job(row: Mapping[Any, Any], attempts: list[dict[str, Any]], now: float) -> dict[str, Any]:
    newest = attempts[-1] if attempts else None
    has_place = newest is not None and (newest["booted_at"] is not None or newest["state"] != AttemptState.GONE)
    offer = newest["offer"] if newest and has_place else {}
    hours = [(_hours(a, now), a["offer"]) for a in attempts]
    running = now - row["run_since"] if row["run_since"] is not None else 0.0
    exits = [n["exit_code"] for n in newest["nodes"] if n["exit_code"] is not None] if newest else []
    return {
        "job_id": row["job_id"],
        "task_index": row["index"],
        "num_tasks": row["num_tasks"],
        "name": row["job_name"],
        "task_name": row["name"],
        "status": row["status"],
        "reason": row["reason"],
        "message": _wait_text(row),
        "task_id": row["task_id"],
        "user": row["user"],
        "priority": row["priority"],
        "submitted_at": iso(row["submitted_at"]),
        "started_at": iso(row["started_at"]),
        "ended_at": iso(row["ended_at"]),
        "job_duration_s": round(row["run_seconds"] + running, 3),
        "total_duration_s": round((row["ended_at"] or now) - row["submitted_at"], 3),
        "recovery_count": row["recovery_count"],
        "restarts_on_errors": row["restarts_on_errors"],
        "resources": row["resources"] or "",
        "cluster_resources": _bought(offer, row["num_nodes"]) if offer else "",
        "num_nodes": row["num_nodes"],
        "cloud": offer.get("cloud"),
        "region": offer.get("region"),
        "zone": offer.get("zone"),
        "market": offer.get("market"),
        "generation": newest["generation"] if newest else 0,
        "cost_usd": sum(h * o["price_per_hour"] for h, o in hours),
        "on_demand_cost_usd": sum(h * o["on_demand_price_per_hour"] for h, o in hours),
        "exit_code": next((code for code in exits if code != 0), exits[0] if exits else None),
        "cleanup": row["cleanup"] or _unfinished(row, attempts),
    }


def _unfinished(row: Mapping[Any, Any], attempts: list[dict[str, Any]]) -> str | None:
    """What is still being cleared away after the end."""
    left = [a for a in attempts if a["state"] != AttemptState.GONE.value]
    if row["ended_at"] is None or not left:
        return None
    return f"ending {sum(len(a['nodes']) for a in left)} machine(s)"


def _attempt(row: dict[str, Any], now: float) -> dict[str, Any]:
    offer = row["offer"]
    node_fields = ("rank", "instance_id", "ip", "phase", "connected", "exit_code")
    return {
        "task_index": row["task_index"],
        "generation": row["generation"],
        "state": row["state"],
        "reason": row["reason"],
        **{name: offer[name] for name in ("cloud", "region", "zone", "instance_type", "market", "price_per_hour")},
        "requested_at": iso(row["requested_at"]),
        "running_at": iso(row["running_at"]),
        "stopped_at": iso(row["stopped_at"]),
        "gone_at": iso(row["gone_at"]),
        "cost_usd": _hours(row, now) * offer["price_per_hour"],
        "nodes": [{name: node[name] for name in node_fields} for node in row["nodes"]],
    }
