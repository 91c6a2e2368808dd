"""The queue as users see it, and one job with its attempts and timeline. Read-only.

`search` finds the jobs of a page, and `counts` counts all of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Connection,
    Text,
    bindparam,
    cast,
    select,
    tuple_,
)

from perdure.controller.store.records.jobs import Attempt, Job, Node, Task, TimelineEvent
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import AttemptState

_EPOCH = datetime(1970, 1, 1)
_MAX_CACHED_OFFERS = 4096
_NO_OFFER_NOW = "every matching offer was unavailable recently"
_MAX_REFUSALS = 100  # tasks of a page that get the answer of a cloud: more than a screen
_MAX_REFUSAL_CHARS = 200

_JOB_IDS: BindParameter[list[int]] = bindparam("job_ids", expanding=True)
_LOW, _HIGH = bindparam("low", type_=BigInteger), bindparam("high", type_=BigInteger)
_OF_TASK = (
    *("job_id", "index", "name", "status", "reason", "message", "task_id", "wake_at", "started_at", "ended_at"),
    *("run_since", "run_seconds", "recovery_count", "restarts_on_errors", "num_nodes"),
)
_KEEP_S = Task.c.recovery["keep_on_failure_s"].as_float()
# Only what a page shows: a task's configuration may be long. `_job` expects the columns in this order.
_TASKS = (
    select(*(Task.c[name] for name in _OF_TASK), Task.c.spec["resources"].as_string().label("resources"))
    .add_columns(Job.c.name.label("job_name"), Job.c.user, Job.c.priority, Job.c.num_tasks, Job.c.cleanup)
    .add_columns(Job.c.submitted_at, _KEEP_S.label("keep_s"), Job.c.sweep_id, Job.c.batch_rank)
    .join(Job, Job.c.id == Task.c.job_id)
    .order_by(Task.c.job_id.desc(), Task.c.index)
)
_NODES = select(Node).order_by(Node.c.rank)
_ATTEMPTS = select(Attempt).order_by(Attempt.c.task_index, Attempt.c.generation)
_KEY = ("job_id", "task_index", "generation")
_SHORT_NODES = _NODES.with_only_columns(*(Node.c[name] for name in (*_KEY, "launched_at", "ended_at", "exit_code")))
_SHORT_ATTEMPTS = _ATTEMPTS.with_only_columns(
    *(Attempt.c[name] for name in (*_KEY, "state", "booted_at", "gone_at", "terminating")), cast(Attempt.c.offer, Text)
)
_PARTS = ((_TASKS, Task), (_SHORT_NODES, Node), (_SHORT_ATTEMPTS, Attempt))
_BY_ID = tuple(part.where(table.c.job_id.in_(_JOB_IDS)) for part, table in _PARTS)
_BY_RANGE = tuple(part.where(table.c.job_id.between(_LOW, _HIGH)) for part, table in _PARTS)


def iso(at: float | None) -> str | None:
    """Epoch seconds as ISO 8601 UTC."""
    return None if at is None else (_EPOCH + timedelta(seconds=at)).isoformat() + "Z"


def describe(conn: Connection, job_ids: Sequence[int], now: float) -> list[dict[str, Any]]:
    """The API's Job objects: one per task, jobs newest first, tasks in order."""
    if not job_ids:
        return []
    tasks, billed, short = _read(conn, job_ids)
    nodes: dict[tuple[int, int, int], list[_Billed]] = {}
    for job_id, task_index, generation, launched_at, ended_at, exit_code in billed:
        of_attempt = nodes.setdefault((job_id, task_index, generation), [])
        of_attempt.append(_Billed(launched_at, ended_at, exit_code))
    attempts: dict[tuple[int, int], list[_Short]] = {}
    for job_id, task_index, generation, state, booted_at, gone_at, terminating, offer in short:
        its_nodes = nodes.get((job_id, task_index, generation), ())
        of_task = attempts.setdefault((job_id, task_index), [])
        of_task.append(_Short(generation, state, booted_at, gone_at, terminating, _offer(offer), its_nodes))
    described = [_job(row, attempts.get((row[0], row[1]), ()), now) for row in tasks]
    _add_refusals(conn, described)
    return described


def _add_refusals(conn: Connection, described: Sequence[dict[str, Any]]) -> None:
    """Add the newest answer of a cloud to why a task waits for an offer: an outage must not look like scarcity."""
    waiting = [one for one in described if str(one["message"]).startswith(_NO_OFFER_NOW)][:_MAX_REFUSALS]
    if not waiting:
        return
    refused = select(TimelineEvent.c.job_id, TimelineEvent.c.task_index, TimelineEvent.c.message).where(
        TimelineEvent.c.job_id.in_({one["job_id"] for one in waiting}), TimelineEvent.c.kind == "attempt.refused"
    )
    newest = {(row.job_id, row.task_index): row.message for row in conn.execute(refused.order_by(TimelineEvent.c.id))}
    for one in waiting:
        if text := newest.get((one["job_id"], one["task_index"])):
            short = text if len(text) <= _MAX_REFUSAL_CHARS else text[:_MAX_REFUSAL_CHARS] + "…"
            one["message"] += f"; the last answer: {short}"


def _read(conn: Connection, job_ids: Sequence[int]) -> Sequence[Sequence[Sequence[Any]]]:
    """Rows of `_PARTS`. Ids that are close together are read as a range, since listing an id costs as much as a row."""
    low, high, wanted = min(job_ids), max(job_ids), frozenset(job_ids)
    if high - low >= 2 * len(wanted):
        return [conn.execute(part, {"job_ids": job_ids}).all() for part in _BY_ID]
    parts = [conn.execute(part, {"low": low, "high": high}).all() for part in _BY_RANGE]
    if high - low + 1 == len(wanted):
        return parts
    return [[row for row in rows if row[0] in wanted] for rows in parts]


class _Billed(NamedTuple):
    launched_at: float | None
    ended_at: float | None
    exit_code: int | None


class _Offer(NamedTuple):
    machine: str  # the instance type with its accelerators
    cloud: str
    region: str
    zone: str
    market: str
    price_per_hour: float
    on_demand_price_per_hour: float


class _Short(NamedTuple):
    """The facts about an attempt that the queue shows."""

    generation: int
    state: str
    booted_at: float | None
    gone_at: float | None
    terminating: bool
    offer: _Offer
    nodes: Sequence[_Billed]


@lru_cache(maxsize=_MAX_CACHED_OFFERS)
def _offer(text: str) -> _Offer:
    """Parse an offer. Cached, since many attempts have the same one."""
    offer = json.loads(text)
    machine = ", ".join(part for part in (offer["instance_type"], _accelerators(offer)) if part)
    names = ("cloud", "region", "zone", "market", "price_per_hour", "on_demand_price_per_hour")
    return _Offer(machine, *(offer[name] for name in names))


def _accelerators(offer: Mapping[str, Any]) -> str:
    return f"{offer['accelerators'][0]}:{offer['accelerators'][1]:g}" if offer.get("accelerators") else ""


def _wait_text(reason: str | None, message: str, wake_at: float | None) -> str:
    """Why a task waits for an offer, and until when."""
    if reason != Reason.BACKING_OFF or wake_at is None:
        return message
    at = datetime.fromtimestamp(wake_at, UTC)
    return f"{_NO_OFFER_NOW}; the next attempt is at {at:%Y-%m-%d %H:%M:%S} UTC"


def attempts_of(conn: Connection, job_id: int, now: float, newest: int | None = None) -> list[dict[str, Any]]:
    """The API's Attempt objects of a job, in order: all, or the `newest`."""
    query = _ATTEMPTS.where(Attempt.c.job_id == job_id)
    if newest is not None:
        query = query.order_by(None).order_by(Attempt.c.task_index.desc(), Attempt.c.generation.desc()).limit(newest)
    rows = conn.execute(query).mappings().all()[:: 1 if newest is None else -1]
    nodes_of: dict[tuple[int, int], list[Mapping[Any, Any]]] = {}
    of_shown = _NODES.where(Node.c.job_id == job_id)
    if rows:
        of_shown = of_shown.where(tuple_(Node.c.task_index, Node.c.generation) >= (_place_of(rows[0])))
    for row in conn.execute(of_shown).mappings():
        nodes_of.setdefault(_place_of(row), []).append(row)
    return [_attempt(row, nodes_of.get(_place_of(row), []), now) for row in rows]


def _place_of(row: Mapping[Any, Any]) -> tuple[int, int]:
    return row["task_index"], row["generation"]


def timeline(conn: Connection, job_id: int, newest: int | None = None) -> list[dict[str, Any]]:
    """The entries of a job's timeline, in order: all, or the `newest`."""
    query = select(TimelineEvent).where(TimelineEvent.c.job_id == job_id)
    if newest is None:
        return [timeline_entry(row) for row in conn.execute(query.order_by(TimelineEvent.c.id)).mappings()]
    rows = conn.execute(query.order_by(TimelineEvent.c.id.desc()).limit(newest)).mappings().all()
    return [timeline_entry(row) for row in reversed(rows)]


def timeline_entry(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The API's TimelineEntry of a row."""
    names = ("kind", "task_index", "generation", "rank", "reason", "message", "data")
    return {"at": iso(row["at"]), **{name: row[name] for name in names}}


def _hours(nodes: Sequence[_Billed], booted_at: float | None, gone_at: float | None, now: float) -> float:
    """Machine hours billed, summed over the nodes of an attempt."""
    total = 0.0
    for launched_at, ended_at, _ in nodes:
        begun = launched_at if launched_at is not None else booted_at
        if begun is not None:
            ended = ended_at if ended_at is not None else gone_at
            total += max(0.0, (now if ended is None else ended) - begun) / 3600
    return total


def _job(row: Sequence[Any], attempts: Sequence[_Short], now: float) -> dict[str, Any]:
    """`row`: of `_TASKS`. Unpacked in two statements, because a page has hundreds of rows."""
    job_id, index, task_name, status, reason, message, task_id, wake_at, started_at, ended_at, *rest = row
    run_since, run_seconds, recovery_count, restarts_on_errors, num_nodes, resources, job_name, *rest = rest
    user, priority, num_tasks, cleanup, submitted_at, keep_s, sweep_id, sweep_rank = rest
    newest = attempts[-1] if attempts else None
    has_place = newest is not None and (newest.booted_at is not None or newest.state != AttemptState.GONE)
    offer = newest.offer if newest is not None and has_place else None
    cost = on_demand_cost = 0.0
    for attempt in attempts:
        hours = _hours(attempt.nodes, attempt.booted_at, attempt.gone_at, now)
        cost += hours * attempt.offer.price_per_hour
        on_demand_cost += hours * attempt.offer.on_demand_price_per_hour
    exits = [node.exit_code for node in newest.nodes if node.exit_code is not None] if newest else []
    return {
        "job_id": job_id,
        "task_index": index,
        "num_tasks": num_tasks,
        "name": job_name,
        "task_name": task_name,
        "status": status,
        "reason": reason,
        "message": _wait_text(reason, message, wake_at),
        "task_id": task_id,
        "sweep_id": sweep_id,
        "sweep_rank": None if sweep_id is None else sweep_rank,
        "user": user,
        "priority": priority,
        "submitted_at": iso(submitted_at),
        "started_at": iso(started_at),
        "ended_at": iso(ended_at),
        "job_duration_s": round(run_seconds + (now - run_since if run_since is not None else 0.0), 3),
        "total_duration_s": round((ended_at or now) - submitted_at, 3),
        "recovery_count": recovery_count,
        "restarts_on_errors": restarts_on_errors,
        "resources": resources or "",
        "cluster_resources": f"{num_nodes}x({offer.machine}, {offer.market})" if offer else "",
        "num_nodes": num_nodes,
        "cloud": offer.cloud if offer else None,
        "region": offer.region if offer else None,
        "zone": offer.zone if offer else None,
        "market": offer.market if offer else None,
        "generation": newest.generation if newest else 0,
        "cost_usd": cost,
        "on_demand_cost_usd": on_demand_cost,
        "exit_code": next((code for code in exits if code != 0), exits[0] if exits else None),
        "cleanup": cleanup or _unfinished(ended_at, attempts, keep_s),
    }


def _unfinished(ended_at: float | None, attempts: Sequence[_Short], keep_s: float | None) -> str | None:
    """What remains to be cleaned up after the end of the task."""
    if ended_at is None:
        return None
    left = [attempt for attempt in attempts if attempt.state != AttemptState.GONE]
    kept = [attempt for attempt in left if attempt.state == AttemptState.STOPPED and not attempt.terminating]
    if keep_s and kept:
        machines = sum(len(attempt.nodes) for attempt in kept)
        price = sum(len(attempt.nodes) * attempt.offer.price_per_hour for attempt in kept)
        until = datetime.fromtimestamp(ended_at + keep_s, UTC)
        return f"keeping {machines} machine(s) until {until:%Y-%m-%d %H:%M:%S} UTC, for ${price:.4g} per hour"
    return f"ending {sum(len(attempt.nodes) for attempt in left)} machine(s)" if left else None


def _attempt(row: Mapping[Any, Any], nodes: Sequence[Mapping[Any, Any]], now: float) -> dict[str, Any]:
    offer = row["offer"]
    billed = [_Billed(node["launched_at"], node["ended_at"], node["exit_code"]) for node in nodes]
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
        "cost_usd": _hours(billed, row["booted_at"], row["gone_at"], now) * offer["price_per_hour"],
        "nodes": [{name: node[name] for name in node_fields} for node in nodes],
    }
